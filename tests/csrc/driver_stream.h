#pragma once

namespace driver {

void check_streams();

}  // namespace driver
