// How a program ends when it cannot do what it was asked: one line on stderr, one exit code.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>

namespace workload {

enum class ExitCode { done = 0, wrong = 1, error = 2, usage = 64 };

/// Found out by every rank alike, before MPI_Init if possible.
struct Failure : std::runtime_error {
    Failure(ExitCode exit_code, const std::string& line) : std::runtime_error(line), code(exit_code) {}
    ExitCode code;
};

/// What was computed or received is not what it has to be.
inline Failure wrong_result(const std::string& line) { return {ExitCode::wrong, line}; }

/// A file, a volume or a surface that is not what it should be.
inline Failure error(const std::string& line) { return {ExitCode::error, line}; }

/// An option, or a number of ranks, that is not accepted.
inline Failure usage_error(const std::string& line) { return {ExitCode::usage, line}; }

/// A number as such lines tell it, in six digits at most.
std::string short_form(double value);

/// Runs `body`; a Failure becomes `NAME: LINE` on rank 0's stderr and the exit code on every rank. A rank that lacks
/// memory says so itself and ends all.
int run_program(const std::string& name, const std::function<void()>& body);

/// Is this rank 0, or a process that no launcher started? Known without MPI, from the launcher's
/// environment, so that mistakes are told before the network is touched.
bool speaks_for_all();

}  // namespace workload
