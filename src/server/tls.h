/*
 * The service's certificate. It can be read again while connections are open: those that are being
 * set up go on with the one they have seen. GnuTLS is what libmicrohttpd itself uses, and loaded
 * only where TLS is asked for.
 */
#ifndef HF_SERVER_TLS_H
#define HF_SERVER_TLS_H

#include "server.h"

/* Read certificate and key for the first time, or again; nothing where there are none. */
int tls_load(struct server *server, struct hf_error *err);
void tls_close(void); /* behind the last connection */

/* For MHD_OPTION_HTTPS_CERT_CALLBACK. */
void *tls_callback(void);

#endif
