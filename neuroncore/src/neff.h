// SPDX-License-Identifier: Apache-2.0
//
// The NEFF container: the publicly described header of 1024 bytes, then a tar. What the tar holds is our own:
//   program.mlir     the StableHLO text, with scratch parameters
//   executable.bin   XLA's serialized executable (absent if the plugin cannot serialize)
//   fingerprint.txt  what the executable was compiled by and for
//   meta.json        for people and tools
#pragma once

#include <string>
#include <string_view>

namespace neuroncore {

struct NeffContent {
  std::string name;
  std::string program;
  std::string executable;
  std::string fingerprint;
  std::string metadata;
};

std::string WriteNeff(const NeffContent& content);

struct NeffView {
  std::string_view program;
  std::string_view executable;  // empty if absent
  std::string_view fingerprint;
};

// Checks sizes and hash. The views point into `bytes`. Returns an NRT_STATUS, not NRT_SUCCESS after Fail().
int ReadNeff(std::string_view bytes, NeffView* view);

}  // namespace neuroncore
