// SPDX-License-Identifier: Apache-2.0
//
// The little of the ustar format that a NEFF needs: regular files with short names.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace neuroncore {

class TarWriter {
 public:
  void Add(const std::string& name, std::string_view content);
  std::string Finish();

 private:
  std::string bytes_;
};

// The regular files of an archive by name; the views point into `archive`. False if the archive is damaged.
bool ReadTar(std::string_view archive, std::map<std::string, std::string_view>* files);

}  // namespace neuroncore
