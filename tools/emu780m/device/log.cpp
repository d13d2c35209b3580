#include "log.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <unistd.h>

namespace device {
namespace {

constexpr int FIRST_DESCRIPTOR = 200;  // out of the way of programs that count on low numbers
constexpr int STATUS = 70;             // EX_SOFTWARE

const int error_output = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, FIRST_DESCRIPTOR);

void print(const char* format, va_list arguments) {
    char line[1024];
    vsnprintf(line, sizeof line, format, arguments);
    dprintf(error_output >= 0 ? error_output : STDERR_FILENO, "emu780m: %s\n", line);
}

}  // namespace

bool log_wanted(int level) {
    static const char* const value = getenv("EMU_LOG");
    return value && atoi(value) >= level;
}

void log(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print(format, arguments);
    va_end(arguments);
}

void stop(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    print(format, arguments);
    va_end(arguments);
    _exit(STATUS);
}

}  // namespace device
