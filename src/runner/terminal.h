/*
 * Being at home on a terminal. The command joins the wrapper's process group there, and so is in
 * the foreground exactly when the wrapper is: Ctrl-C, Ctrl-Z and reading work as they would without
 * us, also in `holdfast run a -- cmd | less` and in a script, where a foreground group of its own
 * would take the terminal from the others. Where there is no terminal it gets a group of its own, so
 * that what is sent to the wrapper's group reaches it once, through the wrapper.
 */
#ifndef HF_RUNNER_TERMINAL_H
#define HF_RUNNER_TERMINAL_H

#include <stdbool.h>
#include <sys/types.h>

/* Does this session have a terminal? */
bool hf_terminal_is_there(void);

/* Is there a shell that sees us stop and can continue us? */
bool hf_terminal_shell_is_there(void);

/* Stop this process by this signal of the terminal, so that the shell gets its prompt. Returns when it is continued. */
void hf_terminal_stop(int signal_number);

#endif
