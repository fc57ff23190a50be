#include "ending.h"

#include <errno.h>
#include <sys/wait.h>

#include "capture.h"

int hf_end_code(const struct hf_run_end *end)
{
    if (end->not_run)
        return end->not_run == ENOENT || end->not_run == ENOTDIR ? HF_EXIT_NOT_FOUND
                                                                 : HF_EXIT_NOT_EXECUTABLE;
    if (end->why == HF_ENDING_TIMEOUT)
        return HF_EXIT_TIMEOUT;
    if (end->why == HF_ENDING_UNGUARDED)
        return hf_code_exit(HF_LOST);
    return WIFSIGNALED(end->status) ? HF_EXIT_SIGNAL + WTERMSIG(end->status)
                                    : WEXITSTATUS(end->status);
}

bool hf_end_is_lost(const struct hf_run_end *end)
{
    return end->why == HF_ENDING_DEADLINE || end->why == HF_ENDING_LOST;
}

static const char *reason_of(const struct hf_run_end *end, bool never_started)
{
    static const char *const reasons[HF_ENDING_COUNT] = {
        [HF_ENDING_TIMEOUT] = "timeout",
        [HF_ENDING_LOST] = "lost",
        [HF_ENDING_UNGUARDED] = "guardian killed",
        [HF_ENDING_CANCELLED] = "cancelled",
        [HF_ENDING_STOPPED] = "its worker was stopped",
    };
    const char *reason = reasons[end->why];
    if (never_started && !reason)
        return "could not be started";
    return end->not_run ? "could not be run" : reason ? reason : "";
}

struct hf_result hf_end_result(const struct hf_run_end *end, bool never_started, int code,
                               struct hf_capture *capture)
{
    struct hf_result result = HF_RESULT_INIT;
    if (capture)
        result = *hf_capture_copy(capture);
    bool aborted =
        end->why == HF_ENDING_CANCELLED || end->why == HF_ENDING_STOPPED || never_started;
    result.state = aborted ? HF_ABORTED : code == 0 ? HF_SUCCESS : HF_FAILED;
    result.has_exit_code = !never_started;
    result.exit_code = code;
    result.reason = reason_of(end, never_started);
    return result;
}
