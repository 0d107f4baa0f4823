// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include <nrt/nrt_status.h>

namespace neuron {

// "NRT_RESOURCE (4): <detail>", or, without a detail, what the status means.
std::string describe_status(NRT_STATUS status, std::string_view detail);

}  // namespace neuron
