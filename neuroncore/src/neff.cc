// SPDX-License-Identifier: Apache-2.0
#include "neff.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>

#include "errors.h"
#include "sha256.h"
#include "tar.h"
#include "version.h"

namespace neuroncore {
namespace {

struct Header {
  uint64_t package_version;
  uint64_t header_size;
  uint64_t data_size;
  uint64_t version_major;
  uint64_t version_minor;
  char build_version[128];
  uint32_t num_tpb;
  uint8_t hash[32];
  uint8_t uuid[16];
  char name[256];
  uint32_t requested_tpb_count;
  uint8_t tpb_per_node[64];
  uint64_t feature_bits;
  uint32_t lnc_size;
  uint8_t padding[468];
};
static_assert(sizeof(Header) == 1024);
static_assert(offsetof(Header, hash) == 172 && offsetof(Header, name) == 220 && offsetof(Header, lnc_size) == 552);

// Far above the vendor's versions, so that its runtime refuses our files by the documented path.
constexpr uint64_t kVersionMajor = 1000;
constexpr char kBuildVersion[] = "software";

}  // namespace

std::string WriteNeff(const NeffContent& content) {
  TarWriter tar;
  tar.Add("meta.json", content.metadata);
  tar.Add("fingerprint.txt", content.fingerprint);
  tar.Add("program.mlir", content.program);
  if (!content.executable.empty()) tar.Add("executable.bin", content.executable);
  std::string data = tar.Finish();

  Header header = {};
  header.package_version = 1;
  header.header_size = sizeof(header);
  header.data_size = data.size();
  header.version_major = kVersionMajor;
  header.version_minor = kNeffFormat;
  snprintf(header.build_version, sizeof(header.build_version), "%s %s", kBuildVersion, kVersion);
  header.num_tpb = 1;
  header.requested_tpb_count = 1;
  header.tpb_per_node[0] = 1;
  header.lnc_size = 1;
  Sha256::Digest digest = Sha256::Of(data.data(), data.size());
  memcpy(header.hash, digest.data(), sizeof(header.hash));
  memcpy(header.uuid, digest.data(), sizeof(header.uuid));
  snprintf(header.name, sizeof(header.name), "software:%s", content.name.c_str());

  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  return bytes += data;
}

int ReadNeff(std::string_view bytes, NeffView* view) {
  if (bytes.size() < sizeof(Header)) {
    return Fail(NRT_INVALID, "not a NEFF: %zu bytes are less than its header", bytes.size());
  }
  Header header;
  memcpy(&header, bytes.data(), sizeof(header));
  if (header.header_size != sizeof(Header)) return Fail(NRT_INVALID, "not a NEFF: unknown header");
  std::string_view data = bytes.substr(sizeof(Header));
  if (header.data_size != data.size()) {
    return Fail(NRT_INVALID, "damaged NEFF: its header promises %llu bytes of data, there are %zu",
                static_cast<unsigned long long>(header.data_size), data.size());
  }
  if (header.version_major != kVersionMajor ||
      strncmp(header.build_version, kBuildVersion, strlen(kBuildVersion)) != 0) {
    return Fail(NRT_UNSUPPORTED_NEFF_VERSION,
                "this NEFF (version %llu.%llu) was not compiled for the software NeuronCore; compile it again",
                static_cast<unsigned long long>(header.version_major),
                static_cast<unsigned long long>(header.version_minor));
  }
  Sha256::Digest digest = Sha256::Of(data.data(), data.size());
  if (memcmp(digest.data(), header.hash, digest.size()) != 0) {
    return Fail(NRT_INVALID, "damaged NEFF: the SHA-256 of its data is not the one in its header");
  }
  std::map<std::string, std::string_view> files;
  if (!ReadTar(data, &files)) return Fail(NRT_INVALID, "damaged NEFF: its data is not a tar archive");
  if (files.count("program.mlir") == 0 || files.count("fingerprint.txt") == 0) {
    return Fail(NRT_UNSUPPORTED_NEFF_VERSION,
                "this NEFF holds no program for the software NeuronCore; compile it again");
  }
  view->program = files["program.mlir"];
  view->executable = files["executable.bin"];
  view->fingerprint = files["fingerprint.txt"];
  return NRT_SUCCESS;
}

}  // namespace neuroncore
