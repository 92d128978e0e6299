// The tables of functions through which ggml calls a backend. ggml keeps them in an internal header
// (ggml-backend-impl.h) that wheels do not install; what follows has the same layout, member by
// member, as of the version below. `abi_trouble()` in trouble.cpp refuses any other ggml.
#pragma once

#include "ggml-backend.h"
#include "ggml.h"

#define XC_GGML_VERSION "0.25.3"

extern "C" {

enum { XC_BACKEND_API_VERSION = 2 };

struct ggml_backend_buffer_type_i {
    const char * (*get_name)(ggml_backend_buffer_type_t);
    ggml_backend_buffer_t (*alloc_buffer)(ggml_backend_buffer_type_t, size_t size);
    size_t (*get_alignment)(ggml_backend_buffer_type_t);
    size_t (*get_max_size)(ggml_backend_buffer_type_t);                            // may be null
    size_t (*get_alloc_size)(ggml_backend_buffer_type_t, const ggml_tensor *);     // may be null
    bool (*is_host)(ggml_backend_buffer_type_t);                                   // may be null
};

struct ggml_backend_buffer_type {
    ggml_backend_buffer_type_i iface;
    ggml_backend_dev_t device;
    void * context;
};

struct ggml_backend_buffer_i {
    void (*free_buffer)(ggml_backend_buffer_t);
    void * (*get_base)(ggml_backend_buffer_t);
    ggml_status (*init_tensor)(ggml_backend_buffer_t, ggml_tensor *); // may be null
    void (*memset_tensor)(ggml_backend_buffer_t, ggml_tensor *, uint8_t value, size_t offset, size_t size);
    void (*set_tensor)(ggml_backend_buffer_t, ggml_tensor *, const void * data, size_t offset, size_t size);
    void (*get_tensor)(ggml_backend_buffer_t, const ggml_tensor *, void * data, size_t offset, size_t size);
    void (*set_tensor_2d)(ggml_backend_buffer_t, ggml_tensor *, const void * data, size_t offset, size_t size,
                          size_t n_copies, size_t stride_tensor, size_t stride_data); // may be null
    void (*get_tensor_2d)(ggml_backend_buffer_t, const ggml_tensor *, void * data, size_t offset, size_t size,
                          size_t n_copies, size_t stride_tensor, size_t stride_data); // may be null
    bool (*cpy_tensor)(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst); // may be null
    void (*clear)(ggml_backend_buffer_t, uint8_t value);
    void (*reset)(ggml_backend_buffer_t); // may be null
};

struct ggml_backend_buffer {
    ggml_backend_buffer_i iface;
    ggml_backend_buffer_type_t buft;
    void * context;
    size_t size;
    ggml_backend_buffer_usage usage;
};

ggml_backend_buffer_t ggml_backend_buffer_init(ggml_backend_buffer_type_t, ggml_backend_buffer_i, void * context,
                                               size_t size);

struct ggml_backend_graph_optimize_params;

struct ggml_backend_i {
    const char * (*get_name)(ggml_backend_t);
    void (*free)(ggml_backend_t);
    // all of these may be null, but for graph_compute
    void (*set_tensor_async)(ggml_backend_t, ggml_tensor *, const void * data, size_t offset, size_t size);
    void (*get_tensor_async)(ggml_backend_t, const ggml_tensor *, void * data, size_t offset, size_t size);
    void (*set_tensor_2d_async)(ggml_backend_t, ggml_tensor *, const void * data, size_t offset, size_t size,
                                size_t n_copies, size_t stride_tensor, size_t stride_data);
    void (*get_tensor_2d_async)(ggml_backend_t, const ggml_tensor *, void * data, size_t offset, size_t size,
                                size_t n_copies, size_t stride_tensor, size_t stride_data);
    bool (*cpy_tensor_async)(ggml_backend_t from, ggml_backend_t to, const ggml_tensor * src, ggml_tensor * dst);
    void (*synchronize)(ggml_backend_t);
    ggml_backend_graph_plan_t (*graph_plan_create)(ggml_backend_t, const ggml_cgraph *);
    void (*graph_plan_free)(ggml_backend_t, ggml_backend_graph_plan_t);
    void (*graph_plan_update)(ggml_backend_t, ggml_backend_graph_plan_t, const ggml_cgraph *);
    ggml_status (*graph_plan_compute)(ggml_backend_t, ggml_backend_graph_plan_t);
    ggml_status (*graph_compute)(ggml_backend_t, ggml_cgraph *);
    void (*event_record)(ggml_backend_t, ggml_backend_event_t);
    void (*event_wait)(ggml_backend_t, ggml_backend_event_t);
    void (*graph_optimize)(ggml_backend_t, ggml_cgraph *, ggml_backend_graph_optimize_params *);
};

struct ggml_backend {
    ggml_guid_t guid;
    ggml_backend_i iface;
    ggml_backend_dev_t device;
    void * context;
};

struct ggml_backend_event {
    ggml_backend_device * device;
    void * context;
};

struct ggml_backend_device_i {
    const char * (*get_name)(ggml_backend_dev_t);
    const char * (*get_description)(ggml_backend_dev_t);
    void (*get_memory)(ggml_backend_dev_t, size_t * free, size_t * total);
    enum ggml_backend_dev_type (*get_type)(ggml_backend_dev_t);
    void (*get_props)(ggml_backend_dev_t, ggml_backend_dev_props *);
    ggml_backend_t (*init_backend)(ggml_backend_dev_t, const char * params);
    ggml_backend_buffer_type_t (*get_buffer_type)(ggml_backend_dev_t);
    ggml_backend_buffer_type_t (*get_host_buffer_type)(ggml_backend_dev_t); // may be null
    ggml_backend_buffer_t (*buffer_from_host_ptr)(ggml_backend_dev_t, void *, size_t size,
                                                  size_t max_tensor_size); // may be null
    bool (*supports_op)(ggml_backend_dev_t, const ggml_tensor *);
    bool (*supports_buft)(ggml_backend_dev_t, ggml_backend_buffer_type_t);
    bool (*offload_op)(ggml_backend_dev_t, const ggml_tensor *); // may be null
    ggml_backend_event_t (*event_new)(ggml_backend_dev_t);       // these three together may be null
    void (*event_free)(ggml_backend_dev_t, ggml_backend_event_t);
    void (*event_synchronize)(ggml_backend_dev_t, ggml_backend_event_t);
};

struct ggml_backend_device {
    ggml_backend_device_i iface;
    ggml_backend_reg_t reg;
    void * context;
};

struct ggml_backend_reg_i {
    const char * (*get_name)(ggml_backend_reg_t);
    size_t (*get_device_count)(ggml_backend_reg_t);
    ggml_backend_dev_t (*get_device)(ggml_backend_reg_t, size_t index);
    void * (*get_proc_address)(ggml_backend_reg_t, const char * name); // may be null
};

struct ggml_backend_reg {
    int api_version;
    ggml_backend_reg_i iface;
    void * context;
};

} // extern "C"
