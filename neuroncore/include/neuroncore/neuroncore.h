/* SPDX-License-Identifier: Apache-2.0
 *
 * What the software NeuronCore offers beyond the NRT ABI: its compiler, host kernels, a transport for collectives,
 * error texts and counters. Any thread may call any function. With none of these used, the library behaves as a plain
 * libnrt.
 *
 * Environment (read when the library is first used):
 *   TORCH_NEURONX_PJRT_PLUGIN      path of an XLA CPU PJRT plugin (.so); required
 *   TORCH_NEURONX_SOFTWARE_CORES   cores of this machine; 8, or LOCAL_WORLD_SIZE if that is more
 *   NEURON_RT_VISIBLE_CORES        "2", "0-3" or "2,3": the cores of this process, contiguous and increasing
 *   NEURON_RT_NUM_CORES            number of cores of this process, when NEURON_RT_VISIBLE_CORES is not set
 *   NEURON_PLATFORM_TARGET_OVERRIDE  trn2 (default) or trn3: the family to report
 *   NEURONCORE_MEMORY_BYTES        device memory of one core; 24 GiB, at most the memory of the machine
 *   NPROC, XLA_FLAGS               read by XLA itself
 *   TF_CPP_MIN_LOG_LEVEL           set to 3 (no log lines of XLA) unless it is set
 *
 * Programs run on XLA's CPU code, which flushes denormal floating point numbers to zero.
 */
#ifndef NEURONCORE_NEURONCORE_H_
#define NEURONCORE_NEURONCORE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <nrt/nrt.h>
#include <nrt/nrt_status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Errors. */

/* Why the last failing nrt_ or neuroncore_ call of this thread failed; "" if none did. Valid until the next failure in
 * this thread. Texts of XLA are included. */
const char* neuroncore_last_error(void);

/* ---- Compiler. */

/* Compiles StableHLO text to a NEFF.
 *
 * `mlir` has one public function @main over ranked static tensors. A parameter with {tf.aliasing_output = K : i32} may
 * be updated in place: at execution its memory becomes output K when the input tensor and the output tensor K are the
 * same tensor; otherwise it is copied, never destroyed.
 *
 * metadata_json: null, or a JSON object whose members are merged into the NEFF's meta.json.
 * optimize_level: 0 compiles fast (one eager operator), 1 runs fast (a graph).
 * On success *neff is released with neuroncore_free. On failure *error (if `error` is not null) is a message to release
 * with neuroncore_free. Does not need nrt_init. */
NRT_STATUS neuroncore_compile(const char* mlir, size_t mlir_size, const char* metadata_json, int optimize_level,
                              void** neff, size_t* neff_size, char** error);
void neuroncore_free(void* memory);

/* Identifies everything but the program that decides what neuroncore_compile produces: library, plugin, XLA flags and
 * CPU features. Part of a compile cache key. "" when the plugin cannot be used. */
const char* neuroncore_fingerprint(void);
/* Path of the plugin in use, "" if none. */
const char* neuroncore_plugin_path(void);
/* One line for people: library version, plugin and its API version; or why the plugin cannot be used. */
const char* neuroncore_description(void);

/* ---- Host kernels: functions that a program calls as
 *        stablehlo.custom_call @NAME(...) {api_version = 4 : i32, backend_config = {config = "..."}}                 */

/* Values of element_type. */
enum {
  NEURONCORE_TYPE_PRED = 1,
  NEURONCORE_TYPE_S8 = 2,
  NEURONCORE_TYPE_S16 = 3,
  NEURONCORE_TYPE_S32 = 4,
  NEURONCORE_TYPE_S64 = 5,
  NEURONCORE_TYPE_U8 = 6,
  NEURONCORE_TYPE_U16 = 7,
  NEURONCORE_TYPE_U32 = 8,
  NEURONCORE_TYPE_U64 = 9,
  NEURONCORE_TYPE_F16 = 10,
  NEURONCORE_TYPE_F32 = 11,
  NEURONCORE_TYPE_F64 = 12,
  NEURONCORE_TYPE_BF16 = 13,
  NEURONCORE_TYPE_C64 = 14,
  NEURONCORE_TYPE_C128 = 15,
  NEURONCORE_TYPE_F8E5M2 = 16,
  NEURONCORE_TYPE_F8E4M3FN = 17,
  NEURONCORE_TYPE_F8E4M3B11FNUZ = 18,
  NEURONCORE_TYPE_F8E5M2FNUZ = 19,
  NEURONCORE_TYPE_F8E4M3FNUZ = 20,
  NEURONCORE_TYPE_F8E4M3 = 26,
  NEURONCORE_TYPE_F8E3M4 = 27
};

typedef struct {
  void* data; /* row-major, dense */
  int32_t element_type;
  int32_t rank;
  const int64_t* dims;
} neuroncore_buffer_t;

typedef struct {
  const neuroncore_buffer_t* inputs;
  size_t num_inputs;
  const neuroncore_buffer_t* outputs;
  size_t num_outputs;
  const char* config; /* the string attribute `config` of backend_config, NUL-terminated; "" if absent */
  /* For the length of the call: has a thread of XLA's run task(data) once, soon, late or after the call. False if there
   * are none. Null where XLA does not run the program. `pool` is its first argument. */
  bool (*schedule)(void* pool, void (*task)(void* data), void* data);
  void* pool;
} neuroncore_kernel_call_t;

/* Returns 0, or anything else after writing a message to error[0..error_size). Called in the thread of nrt_execute or
 * in a thread of XLA; must not call back into nrt_execute, and must not throw. */
typedef int (*neuroncore_kernel_fn)(void* context, const neuroncore_kernel_call_t* call, char* error,
                                    size_t error_size);

/* Registers (or replaces) a kernel. Possible at any time, also before the plugin is loaded; before a program that calls
 * it is compiled or loaded. NRT_INVALID for an empty name, one with the prefix "neuroncore.", or a null function. */
NRT_STATUS neuroncore_register_kernel(const char* name, neuroncore_kernel_fn fn, void* context);
bool neuroncore_has_kernel(const char* name);

/* Built-in kernels:
 *
 *   @neuroncore.check_index(index) -> index       config = "limit=50257;wrap=1;op=aten::embedding"
 *     Copies an i32 or i64 tensor through. Every element must lie in [0, limit), or, with wrap=1, in [-limit, limit),
 *     where negative ones get limit added. Otherwise the execution fails with NRT_EXEC_OOB and a text that names `op`.
 *
 *   @neuroncore.undefined(...) -> ...
 *     Writes nothing: any number of results, whose elements are whatever the memory holds. A parameter that is updated
 *     in place to such a result, with the program's other results as operands, is memory that the program may use for
 *     its temporaries once it has read the parameter for the last time.
 *
 *   @neuroncore.all_reduce(x) -> x                config = "group=0;op=sum"
 *   @neuroncore.all_gather(x) -> y                config = "group=0"
 *   @neuroncore.reduce_scatter(x) -> y            config = "group=0;op=sum"
 *   @neuroncore.all_to_all(x) -> x                config = "group=0"
 *   @neuroncore.broadcast(x) -> x                 config = "group=0;root=1"
 *     Over the leading dimension where one is split or joined; op is sum, product, min, max, and, or, xor or average.
 */

/* ---- Collectives. */

typedef enum {
  NEURONCORE_REDUCE_SUM = 0,
  NEURONCORE_REDUCE_PRODUCT = 1,
  NEURONCORE_REDUCE_MIN = 2,
  NEURONCORE_REDUCE_MAX = 3,
  NEURONCORE_REDUCE_AND = 4,
  NEURONCORE_REDUCE_OR = 5,
  NEURONCORE_REDUCE_XOR = 6,
  NEURONCORE_REDUCE_AVERAGE = 7
} neuroncore_reduce_t;

typedef struct {
  int64_t id;   /* 0 is the group of all cores; other ids have the meaning the transport gave them */
  int32_t rank; /* of the caller in the group */
  int32_t size; /* members of the group */
} neuroncore_group_t;

/* A transport. Pointers are to host memory, input and output do not overlap unless equal. All return 0, or anything
 * else after writing a message to error[0..error_size). A null function is an operation the transport lacks. */
typedef struct {
  size_t struct_size; /* sizeof(neuroncore_collectives_t) */
  void* context;
  /* Fills rank and size of group->id. May be null: then only the group of nrt_build_global_comm exists. */
  int (*describe_group)(void* context, neuroncore_group_t* group, char* error, size_t error_size);
  int (*all_reduce)(void* context, const neuroncore_group_t* group, neuroncore_reduce_t op, int32_t element_type,
                    const void* input, void* output, size_t count, char* error, size_t error_size);
  int (*all_gather)(void* context, const neuroncore_group_t* group, const void* input, void* output,
                    size_t bytes_per_rank, char* error, size_t error_size);
  int (*reduce_scatter)(void* context, const neuroncore_group_t* group, neuroncore_reduce_t op, int32_t element_type,
                        const void* input, void* output, size_t count_per_rank, char* error, size_t error_size);
  /* input_bytes[r] go to rank r, output_bytes[r] come from it; the parts lie one after another. */
  int (*all_to_all)(void* context, const neuroncore_group_t* group, const void* input, const size_t* input_bytes,
                    void* output, const size_t* output_bytes, char* error, size_t error_size);
  int (*broadcast)(void* context, const neuroncore_group_t* group, int32_t root, void* data, size_t bytes, char* error,
                   size_t error_size);
  int (*barrier)(void* context, const neuroncore_group_t* group, char* error, size_t error_size);
} neuroncore_collectives_t;

/* Copies the table; null removes it. Without one, groups of one member work and others answer NRT_FAILURE. */
NRT_STATUS neuroncore_set_collectives(const neuroncore_collectives_t* table);

/* ---- Memory of tensors, for host code that works on it in the place of a program (collectives between programs). */

/* Lends bytes [offset, offset + size) of a tensor; *data is null for size 0. With `overwrite` the caller is about to
 * write all of them, so what they hold now is not kept. Unlike nrt_tensor_get_va this pins nothing: a program that
 * later gives the tensor another content leaves the lent memory alone, so the borrower keeps programs that write the
 * tensor apart from its own use. *loan goes to neuroncore_give_back, also after nrt_tensor_free. */
NRT_STATUS neuroncore_borrow(const nrt_tensor_t* tensor, size_t offset, size_t size, bool overwrite, void** data,
                             void** loan);
void neuroncore_give_back(void* loan);

/* Puts the tensors at input0, input1, ... of a set, or with `outputs` at output0 and so on: count calls of
 * nrt_add_tensor_to_tensor_set in one. */
NRT_STATUS neuroncore_fill_tensor_set(nrt_tensor_set_t* set, bool outputs, nrt_tensor_t* const* tensors,
                                      uint64_t count);

/* ---- Counters. */

typedef struct {
  uint64_t executions;
  uint64_t bytes_adopted;  /* outputs that became a tensor's memory without a copy (donated ones included) */
  uint64_t bytes_copied;   /* copied around executions: results into slices or pinned tensors, unaligned inputs */
  uint64_t donations;      /* parameters updated in place */
  uint64_t scratch_reuses; /* outputs that were written to memory that was already there */
  uint64_t views_created;  /* views made to pass a slice, or a part of a tensor, as an input */
  uint64_t bytes_pooled;   /* held now for reuse; part of bytes_used of nrt_get_vnc_memory_stats */
  uint64_t bytes_read;     /* device to host */
  uint64_t bytes_written;  /* host to device */
  uint64_t execution_ns;
  uint64_t tensors; /* alive now, slices included */
  uint64_t bytes_allocated_peak;
} neuroncore_statistics_t;

/* Writes at most `size` bytes of the counters of core `vnc` (an index among the visible cores). */
NRT_STATUS neuroncore_get_statistics(int32_t vnc, neuroncore_statistics_t* statistics, size_t size);
/* Time the core spent executing programs since nrt_init; 0 for a core that does not exist. */
uint64_t neuroncore_execution_time_ns(int32_t vnc);

#ifdef __cplusplus
}
#endif

#endif /* NEURONCORE_NEURONCORE_H_ */
