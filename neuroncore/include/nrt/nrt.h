/* SPDX-License-Identifier: Apache-2.0
 *
 * The synchronous C ABI of the Neuron runtime (NRT), declared from its public documentation: names, argument order,
 * enum values and struct layouts. The same header serves the vendor's libnrt.so.1 and the software NeuronCore
 * (libneuroncore.so); remarks that begin with "Software:" say what only the latter promises.
 */
#ifndef NRT_NRT_H_
#define NRT_NRT_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <nrt/nrt_status.h>
#include <nrt/nrt_version.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nrt_model nrt_model_t;
typedef struct nrt_tensor nrt_tensor_t;
typedef void nrt_tensor_set_t;

typedef enum {
  NRT_TENSOR_PLACEMENT_DEVICE = 0,
  NRT_TENSOR_PLACEMENT_HOST = 1,
  NRT_TENSOR_PLACEMENT_VIRTUAL = 2 /* withdrawn by the vendor; refused with NRT_INVALID */
} nrt_tensor_placement_t;

typedef enum {
  NRT_FRAMEWORK_TYPE_INVALID = 0,
  NRT_FRAMEWORK_TYPE_NO_FW = 1,
  NRT_FRAMEWORK_TYPE_TENSORFLOW = 2,
  NRT_FRAMEWORK_TYPE_PYTORCH = 3,
  NRT_FRAMEWORK_TYPE_MXNET = 4,
  NRT_FRAMEWORK_TYPE_PRECHECK = 5
} nrt_framework_type_t;

typedef enum { NRT_TENSOR_USAGE_INPUT = 0, NRT_TENSOR_USAGE_OUTPUT = 1 } nrt_tensor_usage_t;

typedef enum {
  NRT_DTYPE_UNKNOWN = 0,
  NRT_DTYPE_UINT64 = 1,
  NRT_DTYPE_INT8 = 2,
  NRT_DTYPE_UINT8 = 3,
  NRT_DTYPE_INT16 = 4,
  NRT_DTYPE_UINT16 = 5,
  NRT_DTYPE_BFLOAT16 = 6,
  NRT_DTYPE_FLOAT16 = 7,
  NRT_DTYPE_INT32 = 8,
  NRT_DTYPE_UINT32 = 9,
  NRT_DTYPE_FLOAT32 = 10,
  NRT_DTYPE_FP32R = 11,
  NRT_DTYPE_INT64 = 12,
  NRT_DTYPE_FP8_E3 = 13,
  NRT_DTYPE_FP8_E4 = 14,
  NRT_DTYPE_FP8_E5 = 15
} nrt_dtype_t;

typedef enum {
  NRT_INSTANCE_UNKNOWN = 0,
  NRT_INSTANCE_INF1 = 1,
  NRT_INSTANCE_TRN1 = 2,
  NRT_INSTANCE_TRN1N = 3,
  NRT_INSTANCE_INF2 = 4,
  NRT_INSTANCE_TRN2 = 5,
  NRT_INSTANCE_TRN2N = 6,
  NRT_INSTANCE_INF2E = 7,
  NRT_INSTANCE_TRN2P = 8,
  NRT_INSTANCE_TRN2U = 9,
  NRT_INSTANCE_TRN2E = 10,
  NRT_INSTANCE_TRN2EU = 11,
  NRT_INSTANCE_TRN2AC = 12,
  NRT_INSTANCE_TRN2UAC = 13,
  NRT_INSTANCE_TRN3 = 14,
  NRT_INSTANCE_TRN3PDS98 = 15
} nrt_instance_family_t;

typedef enum {
  NRT_INSTANCE_SIZE_1XL = 0,
  NRT_INSTANCE_SIZE_2XL = 1,
  NRT_INSTANCE_SIZE_4XL = 2,
  NRT_INSTANCE_SIZE_6XL = 3,
  NRT_INSTANCE_SIZE_8XL = 4,
  NRT_INSTANCE_SIZE_24XL = 5,
  NRT_INSTANCE_SIZE_32XL = 6,
  NRT_INSTANCE_SIZE_48XL = 7,
  NRT_INSTANCE_SIZE_3XL = 8,
  NRT_INSTANCE_SIZE_UNKNOWN = 9
} nrt_instance_size_t;

typedef struct {
  char name[256];
  nrt_tensor_usage_t usage;
  size_t size; /* bytes */
  nrt_dtype_t dtype;
  uint32_t* shape;
  uint32_t ndim;
} nrt_tensor_info_t;

typedef struct {
  uint64_t tensor_count;
  nrt_tensor_info_t tensor_array[];
} nrt_tensor_info_array_t;

typedef struct {
  uint32_t family; /* nrt_instance_family_t */
  uint32_t size;   /* nrt_instance_size_t */
  char arch_name[16];
  char device_revision[8];
} nrt_instance_info_t;

typedef struct {
  uint64_t bytes_used;
  uint64_t bytes_limit;
} nrt_vnc_memory_stats_t;

typedef struct {
  uint64_t physical_address;
  uint64_t size;
  int hbm_index;
} nrt_tensor_device_allocation_info_t;

typedef struct {
  uint64_t offset;
  uint64_t size;
  void* buffer;
} nrt_tensor_batch_op_t;

typedef struct {
  const nrt_tensor_t* tensor;
  const nrt_tensor_batch_op_t* ops;
  uint32_t num_ops;
} nrt_tensor_batch_t;

typedef struct {
  uint32_t vnc;
} nrt_model_info_t;

/* ---- Lifecycle and device. All but nrt_init, nrt_get_*_count and nrt_get_version answer NRT_UNINITIALIZED before
 * nrt_init and NRT_CLOSED after nrt_close. */

/* Software: NRT_FAILURE when the PJRT plugin named by TORCH_NEURONX_PJRT_PLUGIN cannot be used, NRT_INVALID when
 * NEURON_RT_VISIBLE_CORES is malformed; neuroncore_last_error() says why. May be called again after nrt_close. */
NRT_STATUS nrt_init(nrt_framework_type_t framework, const char* fw_version, const char* fal_version);
void nrt_close(void);

NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t size);
NRT_STATUS nrt_get_visible_vnc_count(uint32_t* count);
NRT_STATUS nrt_get_total_vnc_count(uint32_t* count);
NRT_STATUS nrt_get_visible_nc_count(uint32_t* count);
NRT_STATUS nrt_get_total_nc_count(uint32_t* count);
NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats, size_t size_in, size_t* size_out);

/* ---- Tensors. */

/* Software: costs nothing but accounting; memory is backed by the first write, read as zero before it. */
NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t placement, int vnc, size_t size, const char* name,
                               nrt_tensor_t** tensor);
void nrt_tensor_free(nrt_tensor_t** tensor);
/* A slice shares the storage of its parent (also of another slice) and keeps it alive. */
NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* parent, size_t offset, size_t size, const char* name,
                                     nrt_tensor_t** slice);
/* Withdrawn by the vendor: both answer NRT_INVALID. */
NRT_STATUS nrt_tensor_allocate_empty(const char* name, nrt_tensor_t** tensor);
NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t* tensor, void* buffer, size_t size);
NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buffer, size_t offset, size_t size);
NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buffer, size_t offset, size_t size);
NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool unsafe);
NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t count, bool unsafe);
NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* source, size_t source_offset, nrt_tensor_t* destination,
                           size_t destination_offset, size_t size);
NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value, size_t size);
size_t nrt_tensor_get_size(const nrt_tensor_t* tensor);
/* Software: pins the storage for good; from then on results are copied into it instead of being adopted. */
void* nrt_tensor_get_va(const nrt_tensor_t* tensor);
NRT_STATUS nrt_tensor_get_device_allocation_info(const nrt_tensor_t* tensor, nrt_tensor_device_allocation_info_t* info);
NRT_STATUS nrt_tensor_check_output_completion(const nrt_tensor_t* tensor, int64_t timeout_us, uint64_t expected);
NRT_STATUS nrt_tensor_reset_output_completion(nrt_tensor_t* tensor);

/* ---- Tensor sets: names to tensors. A set does not own its tensors. */

NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** set);
void nrt_destroy_tensor_set(nrt_tensor_set_t** set);
NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* set, const char* name, nrt_tensor_t* tensor);
NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* set, const char* name, nrt_tensor_t** tensor);

/* ---- Models. */

/* vnc -1 takes the first core; vnc_count is accepted as -1 or 1. */
NRT_STATUS nrt_load(const void* neff, size_t size, int32_t vnc, int32_t vnc_count, nrt_model_t** model);
NRT_STATUS nrt_load_collectives(const void* neff, size_t size, int32_t vnc, int32_t vnc_count, uint32_t device_id,
                                uint32_t device_count, nrt_model_t** model);
NRT_STATUS nrt_unload(nrt_model_t* model);
NRT_STATUS nrt_get_model_info(const nrt_model_t* model, nrt_model_info_t* info, size_t size_in, size_t* size_out);
NRT_STATUS nrt_get_model_instance_count(nrt_model_t* model, uint32_t* count);
NRT_STATUS nrt_get_model_nc_count(const nrt_model_t* model, uint32_t* count);
NRT_STATUS nrt_get_model_vnc_count(const nrt_model_t* model, uint32_t* count);
NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* model, nrt_tensor_info_array_t** info);
NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* info);

/* Runs a model and returns when its outputs are written. Inputs are named input0, input1, ...; outputs output0, ...
 *
 * Software: a tensor may be larger than the input or output it stands for. An output written to a whole tensor replaces
 * its whole content (bytes beyond the output become undefined); written to a slice it replaces just those bytes.
 * Outputs of a failed execution are undefined. */
NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* inputs, nrt_tensor_set_t* outputs);
NRT_STATUS nrt_execute_repeat(nrt_model_t* model, const nrt_tensor_set_t* inputs, nrt_tensor_set_t* outputs,
                              int repeat_count);

/* ---- Collectives over host memory, carried by the transport given to neuroncore_set_collectives(). */

NRT_STATUS nrt_build_global_comm(int32_t vnc, uint32_t device_id, uint32_t device_count);
NRT_STATUS nrt_cc_global_comm_init(uint32_t vnc, uint32_t device_id, uint32_t device_count);
NRT_STATUS nrt_barrier(int32_t vnc, uint32_t device_id, uint32_t device_count);
NRT_STATUS nrt_all_gather(int32_t vnc, uint32_t device_id, uint32_t device_count, uint32_t rank_input_size, void* input,
                          void* output);

#ifdef __cplusplus
}
#endif

#endif /* NRT_NRT_H_ */
