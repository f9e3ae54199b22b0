// The checks of the step as XLA calls it.
#pragma once

namespace driver {

// Calls as XLA makes them, on several kinds of threads, and calls that must be refused.
void check_xla_steps();

}  // namespace driver
