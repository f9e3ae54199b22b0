// The checks of coded storages.
#pragma once

#include "driver_formats.h"

namespace driver {

// Steps of parameters of one format, against the reference.
void check_coded_steps(const formats::Format& parameter);

// What codes promise: values survive being stored again, rounding is unbiased, no value disturbs its neighbours.
void check_codes();

}  // namespace driver
