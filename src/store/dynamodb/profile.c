#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "error.h"
#include "transport.h"

/*
 * ~/.aws/credentials has "[NAME]", ~/.aws/config has "[profile NAME]", both have "[default]"; what the
 * first of them says counts.
 */
enum { FILE_MAX = 1 << 20 };

/* What of a profile is understood; those from `source_profile` on only to say that they are not. */
#define KEY_MAP(X)                                                                                 \
    X(aws_access_key_id)                                                                           \
    X(aws_secret_access_key)                                                                       \
    X(aws_session_token)                                                                           \
    X(role_arn)                                                                                    \
    X(web_identity_token_file)                                                                     \
    X(role_session_name)                                                                           \
    X(source_profile)                                                                              \
    X(credential_source)                                                                           \
    X(credential_process)                                                                          \
    X(sso_session)                                                                                 \
    X(sso_account_id)

enum key {
#define X(name) KEY_##name,
    KEY_MAP(X)
#undef X
        KEY_COUNT
};

static const char *const key_names[] = {
#define X(name) #name,
    KEY_MAP(X)
#undef X
};

struct profile {
    const char *name;
    bool found;
    char *values[KEY_COUNT];
};

static void clear_profile(struct profile *p)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (p->values[i])
            explicit_bzero(p->values[i], strlen(p->values[i]));
        free(p->values[i]);
    }
}

/* ---- a file --------------------------------------------------------------------------------- */

static char *trim(char *text)
{
    text += strspn(text, " \t");
    size_t n = strlen(text);
    while (n && strchr(" \t\r", text[n - 1]))
        text[--n] = '\0';
    return text;
}

/* "[NAME]", or in the config file "[profile NAME]"; a name may be in quotes. */
static bool begins_profile(char *line, bool is_config, const char *name)
{
    char *end = strchr(line, ']');
    if (!end)
        return false;
    *end = '\0';
    char *section = trim(line + 1);
    if (is_config && strncmp(section, "profile", 7) == 0 && strchr(" \t", section[7]))
        section = trim(section + 7);
    else if (is_config && strcmp(section, "default") != 0)
        return false;
    size_t n = strlen(section);
    if (n > 1 && (section[0] == '"' || section[0] == '\'') && section[n - 1] == section[0]) {
        section[n - 1] = '\0';
        section++;
    }
    return strcmp(section, name) == 0;
}

/* "key = value"; what follows " #" or " ;" is a comment. */
static void take_value(char *line, struct profile *p)
{
    char *equals = strchr(line, '=');
    if (!equals)
        return;
    *equals = '\0';
    const char *key = trim(line);
    char *value = trim(equals + 1);
    for (char *at = value; (at = strpbrk(at, "#;")); at++)
        if (at > value && strchr(" \t", at[-1])) {
            *at = '\0';
            value = trim(value);
            break;
        }
    for (size_t i = 0; i < KEY_COUNT; i++)
        if (strcasecmp(key, key_names[i]) == 0 && !p->values[i] && *value)
            p->values[i] = strdup(value);
}

static int read_profile(const char *path, bool is_config, struct profile *p, struct hf_error *err)
{
    struct hf_buf text = HF_BUF(FILE_MAX);
    bool within = false;
    char *rest, *line;
    if (access(path, F_OK) < 0)
        return 0;
    int r = hf_dynamo_read_file(path, &text, err);
    for (rest = r >= 0 ? text.data : NULL; (line = strsep(&rest, "\n"));) {
        if (*line == '[')
            p->found |= within = begins_profile(line, is_config, p->name);
        else if (within && *line && !strchr("#; \t\r", *line)) /* what is indented is of a group */
            take_value(line, p);
    }
    hf_dynamo_wipe(&text);
    return r;
}

/* ---- which of them -------------------------------------------------------------------------- */

static void file_path(const char *variable, const char *name, char *ret, size_t size)
{
    const char *given = getenv(variable), *home = getenv("HOME");
    if (given && *given)
        snprintf(ret, size, "%s", given);
    else
        snprintf(ret, size, "%s/.aws/%s", home ? home : "", name);
}

static int use_profile(struct hf_dynamo *d, const struct profile *p, struct hf_dynamo_keys **ret,
                       struct hf_error *err)
{
    char *const *v = p->values;
    struct hf_dynamo_role role = {.arn = v[KEY_role_arn],
                                  .token_file = v[KEY_web_identity_token_file],
                                  .session_name = v[KEY_role_session_name]};
    struct hf_dynamo_found found = {.id = v[KEY_aws_access_key_id],
                                    .secret = v[KEY_aws_secret_access_key],
                                    .session = v[KEY_aws_session_token]};
    char where[256];
    snprintf(where, sizeof where, "profile '%.150s' of AWS's shared files", p->name);
    if (role.arn && role.token_file)
        return hf_dynamo_assume(d, &role, ret, err);
    if (!role.arn && (found.id || found.secret))
        return hf_dynamo_keys_make(&found, where, ret, err);
    for (size_t i = KEY_source_profile; i < KEY_COUNT; i++)
        if (v[i])
            return hf_fail(err, HF_UNAUTHORIZED,
                           "%s: '%s' is not supported; give its keys in the environment, e.g. by "
                           "aws configure export-credentials --format env",
                           where, key_names[i]);
    return 0;
}

int hf_dynamo_from_profile(struct hf_dynamo *d, struct hf_dynamo_keys **ret, struct hf_error *err)
{
    const char *wanted = getenv("AWS_PROFILE");
    char credentials[1024], config[1024];
    if (!wanted || !*wanted)
        wanted = getenv("AWS_DEFAULT_PROFILE");
    bool is_asked_for = wanted && *wanted;
    struct profile p = {.name = is_asked_for ? wanted : "default"};
    file_path("AWS_SHARED_CREDENTIALS_FILE", "credentials", credentials, sizeof credentials);
    file_path("AWS_CONFIG_FILE", "config", config, sizeof config);
    int r = read_profile(credentials, false, &p, err);
    if (r >= 0)
        r = read_profile(config, true, &p, err);
    if (r >= 0 && !p.found && is_asked_for)
        r = hf_fail(err, HF_UNAUTHORIZED, "AWS_PROFILE is '%.150s', which neither %s nor %s has",
                    wanted, credentials, config);
    if (r >= 0 && p.found)
        r = use_profile(d, &p, ret, err);
    clear_profile(&p);
    return r;
}
