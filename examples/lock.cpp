/*
 * The same in C++: a lock that lives as long as a scope, kept alive meanwhile.
 *
 *     c++ -std=c++11 lock.cpp $(pkg-config --cflags --libs holdfast) -o lock
 */
#include <holdfast.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>

namespace
{

/* What went wrong, with the holder where somebody else has the lock. */
class error : public std::runtime_error
{
  public:
    explicit error(const hf_error &why) : std::runtime_error(why.message), detail(why) {}
    hf_error detail;
};

void check(int r, const hf_error &why)
{
    if (r < 0)
        throw error(why);
}

using store = std::shared_ptr<hf>;

store open_store(const char *url = nullptr)
{
    hf *handle;
    hf_error why;
    check(hf_open(url, &handle, &why), why);
    return store(handle, hf_close);
}

/* Holds a name from construction to destruction. */
class lock
{
  public:
    lock(store in, const std::string &name) : store_(std::move(in))
    {
        hf_acquire_options options = HF_ACQUIRE_INIT;
        hf_error why;
        options.bound[0] = getpid();
        options.n_bound = 1;
        check(hf_acquire(store_.get(), name.c_str(), &options, &lease_, &why), why);
        int r = hf_keep(store_.get(), &lease_, nullptr, &keeper_, &why);
        if (r < 0)
            hf_release(store_.get(), &lease_, nullptr);
        check(r, why);
    }
    ~lock()
    {
        hf_keeper_stop(keeper_);
        hf_release(store_.get(), &lease_, nullptr);
    }
    lock(const lock &) = delete;
    lock &operator=(const lock &) = delete;

    int64_t fence() const { return lease_.fence; }

    /* Call it between steps: throws when the lease was lost. */
    void check_held() const
    {
        hf_error why;
        check(hf_keeper_check(keeper_, nullptr, &why), why);
    }

  private:
    store store_;
    hf_lease lease_;
    hf_keeper *keeper_ = nullptr;
};

} // namespace

int main()
{
    try {
        store here = open_store();
        {
            lock held(here, "nightly-report");
            held.check_held();
            std::cout << "only one of me; fence " << held.fence() << "\n";
            try {
                lock second(here, "nightly-report");
                return 1;
            } catch (const error &refused) {
                std::cout << "second: " << hf_code_name(refused.detail.code) << "\n";
            }
        }
        lock again(here, "nightly-report");
        std::cout << "free again; fence " << again.fence() << "\n";
    } catch (const error &failed) {
        std::cerr << failed.what() << "\n";
        return hf_code_exit(failed.detail.code);
    }
    return 0;
}
