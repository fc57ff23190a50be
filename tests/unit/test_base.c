/* Buffers, ids, clocks, errors, and who a process is. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "buf.h"
#include "check.h"
#include "clock.h"
#include "error.h"
#include "hmac.h"
#include "host.h"
#include "id.h"
#include "process.h"

static struct hf_error err;

/* ---- codes ---------------------------------------------------------------------------------- */

/* Programs that were compiled before compare against these numbers. */
static void the_numbers_of_codes_never_change(void **state)
{
    static const struct {
        int code, number;
        const char *name;
    } promised[] = {
        {HF_HELD, 1, "LOCK_HELD"},
        {HF_RACED, 2, "LOCK_RACED"},
        {HF_LOST, 3, "LEASE_LOST"},
        {HF_FENCE_STALE, 4, "FENCE_STALE"},
        {HF_KEY_REUSED, 5, "KEY_REUSED"},
        {HF_INVALID, 6, "INVALID"},
        {HF_UNAUTHORIZED, 7, "UNAUTHORIZED"},
        {HF_FORBIDDEN, 8, "FORBIDDEN"},
        {HF_NOT_FOUND, 9, "NOT_FOUND"},
        {HF_TOO_LARGE, 10, "TOO_LARGE"},
        {HF_QUEUE_FULL, 11, "QUEUE_FULL"},
        {HF_UNSUPPORTED, 12, "UNSUPPORTED"},
        {HF_UNAVAILABLE, 13, "STORE_UNAVAILABLE"},
        {HF_UNKNOWN, 14, "UNKNOWN"},
        {HF_INTERNAL, 15, "INTERNAL"},
        {HF_NOMEM, 16, "NOMEM"},
        {HF_CANCELLED, 17, "CANCELLED"},
        {HF_FORKED, 18, "FORKED"},
        {HF_DONE_ALREADY, 19, "DONE_ALREADY"},
    };
    for (size_t i = 0; i < sizeof promised / sizeof *promised; i++) {
        assert_int_equal(promised[i].code, promised[i].number);
        assert_string_equal(hf_code_name(-promised[i].number), promised[i].name);
    }
}

/* ---- buffers -------------------------------------------------------------------------------- */

static void a_buffer_grows_up_to_its_cap(void **state)
{
    struct hf_buf b = HF_BUF(1000);
    for (int i = 0; i < 1000; i++)
        hf_buf_putc(&b, 'x');
    assert_false(b.failed);
    assert_int_equal(b.len, 1000);
    assert_int_equal(strlen(b.data), 1000);
    hf_buf_putc(&b, 'y');
    assert_true(b.failed);
    assert_int_equal(b.len, 1000);
    hf_buf_puts(&b, ""); /* once failed, all else is ignored */
    assert_true(b.failed);
    hf_buf_clear(&b);
    assert_false(b.failed);
    assert_int_equal(b.cap, 1000);
}

static void a_buffer_formats_and_takes_nothing(void **state)
{
    struct hf_buf b = HF_BUF(10);
    hf_buf_add(&b, NULL, 0);
    assert_string_equal(b.data, "");
    hf_buf_printf(&b, "%d-%s", 12, "abc");
    assert_string_equal(b.data, "12-abc");
    hf_buf_printf(&b, "%s", "too long");
    assert_true(b.failed);
    assert_string_equal(b.data, "12-abc");
    hf_buf_clear(&b);
}

/* ---- ids ------------------------------------------------------------------------------------ */

static void tokens_are_version_4_uuids_and_differ(void **state)
{
    char a[HF_UUID_LEN + 1], b[HF_UUID_LEN + 1];
    hf_token(a);
    hf_token(b);
    assert_string_not_equal(a, b);
    assert_int_equal(strlen(a), HF_UUID_LEN);
    assert_true(a[8] == '-' && a[13] == '-' && a[18] == '-' && a[23] == '-');
    assert_true(a[14] == '4' && strchr("89ab", a[19]));
}

static void a_lock_id_is_half_of_the_tokens_sha256(void **state)
{
    struct hf_lock_id id = hf_lock_id_of("abc"), back;
    char hex[HF_LOCK_ID_LEN + 1];
    hf_lock_id_format(&id, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223");
    assert_true(hf_lock_id_parse(hex, &back));
    assert_true(hf_lock_id_equal(&id, &back));
    assert_false(hf_lock_id_parse("ba7816bf", &back));
    assert_false(hf_lock_id_parse("ga7816bf8f01cfea414140de5dae2223", &back));
    assert_false(hf_lock_id_parse("BA7816bf8f01cfea414140de5dae2223", &back));
    assert_false(hf_lock_id_parse("", &back));
}

/* RFC 4231: a key, data and the HMAC-SHA256 of it, in hex. */
static void hmacs_are_those_of_the_rfc(void **state)
{
    uint8_t key[131], data[152], expected[HF_SHA256_LEN], got[HF_SHA256_LEN];
    static const struct {
        size_t n_key;
        const char *key; /* one character: so often */
        const char *data;
        size_t n_data; /* not 0: data's first byte so often */
        const char *hmac;
    } cases[] = {
        {20, "\x0b", "Hi There", 0,
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {4, "Jefe", "what do ya want for nothing?", 0,
         "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {20, "\xaa", "\xdd", 50,
         "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
        {131, "\xaa", "Test Using Larger Than Block-Size Key - Hash Key First", 0,
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
        {131, "\xaa",
         "This is a test using a larger than block-size key and a larger than block-size data. The "
         "key needs to be hashed before being used by the HMAC algorithm.",
         0, "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = cases[i].n_data ? cases[i].n_data : strlen(cases[i].data), half = n / 2;
        memset(key, cases[i].key[0], sizeof key);
        if (strlen(cases[i].key) > 1)
            memcpy(key, cases[i].key, cases[i].n_key);
        memset(data, cases[i].data[0], sizeof data);
        if (!cases[i].n_data)
            memcpy(data, cases[i].data, n);
        assert_true(hf_hex_read(cases[i].hmac, 64, expected, sizeof expected));
        struct hf_bytes parts[] = {{data, half}, {NULL, 0}, {data + half, n - half}};
        hf_hmac_sha256((struct hf_bytes){key, cases[i].n_key}, parts, 3, got);
        assert_memory_equal(got, expected, sizeof got);
        assert_true(hf_sha256_equal(got, expected));
        for (size_t j = 0; j < sizeof got; j++) {
            got[j] ^= 0x80;
            assert_false(hf_sha256_equal(got, expected));
            got[j] ^= 0x80;
        }
    }
}

static void hex_is_read_strictly(void **state)
{
    uint8_t room[3];
    assert_true(hf_hex_read("00fFA0", 6, room, 3));
    assert_memory_equal(room, "\x00\xff\xa0", 3);
    assert_false(hf_hex_read("00fFA", 5, room, 3));
    assert_false(hf_hex_read("00fFA00", 7, room, 3));
    assert_false(hf_hex_read("00fFAg", 6, room, 3));
    assert_false(hf_hex_read("00fF -", 6, room, 3));
}

/* ---- clocks and errors ---------------------------------------------------------------------- */

static void clocks_go_forward(void **state)
{
    int64_t boot_ms = hf_clock_boot_ms(), wall_ms = hf_clock_wall_ms();
    usleep(2000);
    assert_true(hf_clock_boot_ms() > boot_ms);
    assert_true(wall_ms > INT64_C(1600000000000));
    assert_int_equal(strlen(hf_boot_id()), HF_UUID_LEN);
}

static void errors_carry_code_text_and_errno(void **state)
{
    err.has_holder = true;
    assert_int_equal(hf_fail(&err, HF_HELD, "%s is %d", "x", 5), -HF_HELD);
    assert_int_equal(err.code, -HF_HELD);
    assert_string_equal(err.message, "x is 5");
    assert_false(err.has_holder);
    assert_int_equal(hf_fail_errno(&err, HF_UNAVAILABLE, ENOSPC, "write"), -HF_UNAVAILABLE);
    assert_string_equal(err.message, "write: No space left on device");
    assert_int_equal(hf_fail_errno(&err, HF_UNAVAILABLE, ENOMEM, "grow"), -HF_NOMEM);
    assert_int_equal(hf_fail(NULL, HF_LOST, "nobody listens"), -HF_LOST);
}

static void every_code_has_a_name_an_exit_and_a_status(void **state)
{
#define X(name, number, code, exit_code, http, meaning)                                            \
    assert_string_equal(hf_code_name(-HF_##name), code);                                           \
    assert_string_equal(hf_code_name(HF_##name), code);                                            \
    assert_int_equal(hf_code_exit(-HF_##name), exit_code);                                         \
    assert_int_equal(hf_code_http(-HF_##name), http);                                              \
    assert_true(strlen(hf_code_meaning(-HF_##name)) > 0);
    HF_CODE_MAP(X)
#undef X
    assert_int_equal(hf_code_exit(0), 0);
    assert_int_equal(hf_code_exit(-9999), 70);
}

/* ---- processes ------------------------------------------------------------------------------ */

static pid_t start_child(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    assert_true(pid > 0);
    return pid;
}

static void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static struct hf_processes identify(pid_t pid)
{
    struct hf_processes p;
    int32_t pids[] = {pid};
    assert_int_equal(hf_processes_identify(pids, 1, &p, &err), 0);
    return p;
}

static void a_process_is_alive_until_it_is_dead(void **state)
{
    pid_t pid = start_child();
    struct hf_processes p = identify(pid);
    assert_int_equal(hf_processes_alive(&p), HF_ALIVE);
    end_child(pid);
    assert_int_equal(hf_processes_alive(&p), HF_DEAD);
    int32_t pids[] = {pid};
    assert_int_equal(hf_processes_identify(pids, 1, &p, &err), -HF_INVALID);
}

static void a_stopped_process_is_alive_and_a_zombie_is_dead(void **state)
{
    pid_t pid = start_child();
    struct hf_processes p = identify(pid);
    siginfo_t info;
    kill(pid, SIGSTOP);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED | WNOWAIT), 0);
    assert_int_equal(hf_processes_alive(&p), HF_ALIVE);
    kill(pid, SIGKILL);
    assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(hf_processes_alive(&p), HF_DEAD); /* nobody has reaped it */
    end_child(pid);
}

static void bug_7_a_reused_pid_is_another_process(void **state)
{
    struct hf_processes p = identify(getpid());
    assert_int_equal(hf_processes_alive(&p), HF_ALIVE);
    p.of[0].start_ticks -= 100;
    assert_int_equal(hf_processes_alive(&p), HF_DEAD);
}

/* What a process knows of itself is remembered; a forked child must not take it for its own. */
static void a_forked_child_is_another_process_than_its_parent(void **state)
{
    struct hf_processes parent = identify(getpid());
    pid_t pid = fork();
    if (pid == 0) {
        struct hf_processes child, again;
        int32_t pids[] = {getpid(), getppid()};
        bool ok = hf_processes_identify(&pids[0], 1, &child, &err) == 0 &&
                  hf_processes_identify(&pids[1], 1, &again, &err) == 0 &&
                  child.of[0].pid == getpid() && hf_processes_alive(&child) == HF_ALIVE &&
                  again.of[0].start_ticks == parent.of[0].start_ticks;
        _exit(ok ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void bug_7_a_pid_of_another_namespace_or_boot_is_unknown(void **state)
{
    struct hf_processes p = identify(getpid());
    p.pid_namespace++;
    assert_int_equal(hf_processes_alive(&p), HF_ALIVE_UNKNOWN);
    p.pid_namespace--;
    p.boot[0] = p.boot[0] == 'a' ? 'b' : 'a';
    assert_int_equal(hf_processes_alive(&p), HF_ALIVE_UNKNOWN);
    p = identify(getpid());
    p.n = 0;
    assert_int_equal(hf_processes_alive(&p), HF_ALIVE_UNKNOWN);
}

static void several_are_alive_while_one_is(void **state)
{
    pid_t a = start_child(), b = start_child();
    int32_t pids[] = {a, b};
    struct hf_processes p;
    assert_int_equal(hf_processes_identify(pids, 2, &p, &err), 0);
    end_child(a);
    assert_int_equal(hf_processes_alive(&p), HF_ALIVE);
    end_child(b);
    assert_int_equal(hf_processes_alive(&p), HF_DEAD);
    int32_t three[] = {1, 1, 1};
    assert_int_equal(hf_processes_identify(three, 3, &p, &err), -HF_INVALID);
    int32_t none[] = {0};
    assert_int_equal(hf_processes_identify(none, 1, &p, &err), -HF_INVALID);
}

static void a_watched_process_wakes_us_when_it_ends(void **state)
{
    pid_t pid = start_child();
    struct hf_processes p = identify(pid);
    int fds[HF_BOUND_MAX];
    hf_processes_watch(&p, fds);
    assert_true(fds[0] >= 0);
    assert_int_equal(fds[1], -1);
    struct pollfd watched = {.fd = fds[0], .events = POLLIN};
    assert_int_equal(poll(&watched, 1, 0), 0);
    kill(pid, SIGKILL);
    assert_int_equal(poll(&watched, 1, 60000), 1);
    close(fds[0]);
    end_child(pid);
    hf_processes_watch(&p, fds); /* dead already: nothing to watch */
    assert_int_equal(fds[0], -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_numbers_of_codes_never_change),
        cmocka_unit_test(a_buffer_grows_up_to_its_cap),
        cmocka_unit_test(a_buffer_formats_and_takes_nothing),
        cmocka_unit_test(tokens_are_version_4_uuids_and_differ),
        cmocka_unit_test(a_lock_id_is_half_of_the_tokens_sha256),
        cmocka_unit_test(hmacs_are_those_of_the_rfc),
        cmocka_unit_test(hex_is_read_strictly),
        cmocka_unit_test(clocks_go_forward),
        cmocka_unit_test(errors_carry_code_text_and_errno),
        cmocka_unit_test(every_code_has_a_name_an_exit_and_a_status),
        cmocka_unit_test(a_process_is_alive_until_it_is_dead),
        cmocka_unit_test(a_stopped_process_is_alive_and_a_zombie_is_dead),
        cmocka_unit_test(bug_7_a_reused_pid_is_another_process),
        cmocka_unit_test(a_forked_child_is_another_process_than_its_parent),
        cmocka_unit_test(bug_7_a_pid_of_another_namespace_or_boot_is_unknown),
        cmocka_unit_test(several_are_alive_while_one_is),
        cmocka_unit_test(a_watched_process_wakes_us_when_it_ends),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
