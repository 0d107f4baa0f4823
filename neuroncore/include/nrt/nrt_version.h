/* SPDX-License-Identifier: Apache-2.0
 *
 * Version of the Neuron runtime (NRT).
 */
#ifndef NRT_NRT_VERSION_H_
#define NRT_NRT_VERSION_H_

#include <stddef.h>
#include <stdint.h>

#include <nrt/nrt_status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
  uint64_t rt_major;
  uint64_t rt_minor;
  uint64_t rt_patch;
  uint64_t rt_maintenance;
  char rt_detail[128];
  char git_hash[64];
} nrt_version_t;

/* Writes at most `size` bytes of the version. Allowed before nrt_init. */
NRT_STATUS nrt_get_version(nrt_version_t* version, size_t size);

#ifdef __cplusplus
}
#endif

#endif /* NRT_NRT_VERSION_H_ */
