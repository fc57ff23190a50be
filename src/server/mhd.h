/*
 * libmicrohttpd, loaded when the service starts: no other command pays for it and for what it needs
 * in turn. Its functions are called by their own names.
 */
#ifndef HF_SERVER_MHD_H
#define HF_SERVER_MHD_H

#include <microhttpd.h>

#include "holdfast.h"

#define MHD_SYMBOLS(X)                                                                             \
    X(MHD_start_daemon)                                                                            \
    X(MHD_stop_daemon)                                                                             \
    X(MHD_quiesce_daemon)                                                                          \
    X(MHD_run)                                                                                     \
    X(MHD_get_timeout)                                                                             \
    X(MHD_get_daemon_info)                                                                         \
    X(MHD_get_connection_info)                                                                     \
    X(MHD_get_connection_values)                                                                   \
    X(MHD_lookup_connection_value)                                                                 \
    X(MHD_suspend_connection)                                                                      \
    X(MHD_resume_connection)                                                                       \
    X(MHD_create_response_from_buffer)                                                             \
    X(MHD_create_response_from_callback)                                                           \
    X(MHD_add_response_header)                                                                     \
    X(MHD_queue_response)                                                                          \
    X(MHD_destroy_response)

struct mhd {
#define X(name) __typeof__(name) *name##_;
    MHD_SYMBOLS(X)
#undef X
};
extern struct mhd mhd;

/* Load it; -HF_UNSUPPORTED names the package where it is missing. */
int mhd_load(struct hf_error *err);

#ifndef MHD_LOADER
#define MHD_start_daemon mhd.MHD_start_daemon_
#define MHD_stop_daemon mhd.MHD_stop_daemon_
#define MHD_quiesce_daemon mhd.MHD_quiesce_daemon_
#define MHD_run mhd.MHD_run_
#define MHD_get_timeout mhd.MHD_get_timeout_
#define MHD_get_daemon_info mhd.MHD_get_daemon_info_
#define MHD_get_connection_info mhd.MHD_get_connection_info_
#define MHD_get_connection_values mhd.MHD_get_connection_values_
#define MHD_lookup_connection_value mhd.MHD_lookup_connection_value_
#define MHD_suspend_connection mhd.MHD_suspend_connection_
#define MHD_resume_connection mhd.MHD_resume_connection_
#define MHD_create_response_from_buffer mhd.MHD_create_response_from_buffer_
#define MHD_create_response_from_callback mhd.MHD_create_response_from_callback_
#define MHD_add_response_header mhd.MHD_add_response_header_
#define MHD_queue_response mhd.MHD_queue_response_
#define MHD_destroy_response mhd.MHD_destroy_response_
#endif

#endif
