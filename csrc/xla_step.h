// A step as a handler of XLA's foreign-function interface; `optax/fused.py` calls it.
#pragma once

#include "xla_ffi.h"

namespace ademamix::xla {

Error* step(CallFrame* frame);

}  // namespace ademamix::xla
