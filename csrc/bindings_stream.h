#pragma once

#include <nanobind/nanobind.h>

namespace ademamix {

void bind_stream(nanobind::module_& m);

}  // namespace ademamix
