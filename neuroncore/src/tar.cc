// SPDX-License-Identifier: Apache-2.0
#include "tar.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace neuroncore {
namespace {

constexpr size_t kBlock = 512;

struct Entry {
  char name[100];
  char mode[8];
  char owner[8];
  char group[8];
  char size[12];
  char modified[12];
  char checksum[8];
  char kind;
  char link[100];
  char magic[6];
  char version[2];
  char rest[247];
};
static_assert(sizeof(Entry) == kBlock);

// The sum of all bytes of the header, with the checksum field counted as blanks.
unsigned Checksum(Entry entry) {
  memset(entry.checksum, ' ', sizeof(entry.checksum));
  unsigned sum = 0;
  for (size_t i = 0; i < kBlock; ++i) sum += reinterpret_cast<const unsigned char*>(&entry)[i];
  return sum;
}

size_t Padded(size_t size) { return (size + kBlock - 1) / kBlock * kBlock; }

}  // namespace

void TarWriter::Add(const std::string& name, std::string_view content) {
  Entry entry = {};
  snprintf(entry.name, sizeof(entry.name), "%s", name.c_str());
  // Fixed owner and time: equal programs give equal archives.
  snprintf(entry.mode, sizeof(entry.mode), "%07o", 0644);
  snprintf(entry.owner, sizeof(entry.owner), "%07o", 0);
  snprintf(entry.group, sizeof(entry.group), "%07o", 0);
  snprintf(entry.size, sizeof(entry.size), "%011zo", content.size());
  snprintf(entry.modified, sizeof(entry.modified), "%011o", 0);
  entry.kind = '0';
  memcpy(entry.magic, "ustar", 6);
  memcpy(entry.version, "00", 2);
  snprintf(entry.checksum, sizeof(entry.checksum), "%06o", Checksum(entry));
  entry.checksum[7] = ' ';
  bytes_.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
  bytes_.append(content);
  bytes_.resize(Padded(bytes_.size()));
}

std::string TarWriter::Finish() {
  bytes_.append(2 * kBlock, '\0');
  return std::move(bytes_);
}

bool ReadTar(std::string_view archive, std::map<std::string, std::string_view>* files) {
  while (archive.size() >= kBlock) {
    Entry entry;
    memcpy(&entry, archive.data(), kBlock);
    if (entry.name[0] == '\0') return true;
    if (strtoul(std::string(entry.checksum, 8).c_str(), nullptr, 8) != Checksum(entry)) return false;
    size_t size = strtoull(std::string(entry.size, 12).c_str(), nullptr, 8);
    archive.remove_prefix(kBlock);
    if (size > archive.size()) return false;
    if (entry.kind == '0' || entry.kind == '\0') {
      (*files)[std::string(entry.name, strnlen(entry.name, sizeof(entry.name)))] = archive.substr(0, size);
    }
    if (Padded(size) > archive.size()) return false;
    archive.remove_prefix(Padded(size));
  }
  return false;  // the end mark is missing
}

}  // namespace neuroncore
