#include "common/options.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "common/failure.hpp"

namespace workload {

namespace {

constexpr std::size_t line_columns = 80;
// What an option does begins after so many columns and a space.
constexpr std::size_t head_columns = 16;

// `head`, filled up to its columns, and `text` beside it, in lines that break at spaces.
std::string beside(std::string head, const std::string& text) {
    head.resize(std::max(head.size(), head_columns), ' ');
    std::size_t column = head.size();
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        if (column + 1 + word.size() > line_columns) {
            head += '\n';
            head.append(head_columns, ' ');
            column = head_columns;
        }
        head += ' ';
        head += word;
        column += 1 + word.size();
    }
    return head;
}

bool read_real(const std::string& text, double* value) {
    char* end = nullptr;
    *value = std::strtod(text.c_str(), &end);
    return !text.empty() && *end == '\0' && std::isfinite(*value);
}

bool read_whole(const std::string& text, long* value) {
    char* end = nullptr;
    errno = 0;
    *value = std::strtol(text.c_str(), &end, 10);
    return !text.empty() && *end == '\0' && errno == 0;
}

}  // namespace

Options::Options(std::string name, std::string story, std::string examples)
    : name_(std::move(name)), story_(std::move(story)), examples_(std::move(examples)) {}

void Options::number(const std::string& name, int* value, int least, int most, const std::string& help) {
    const auto set = [=](const std::string& text) {
        long read = 0;
        if (!read_whole(text, &read) || read < least || read > most) {
            return false;
        }
        *value = static_cast<int>(read);
        return true;
    };
    const std::string accepts =
        "a whole number from " + std::to_string(least) + " to " + std::to_string(most);
    options_.push_back({name, accepts, help + " [" + std::to_string(*value) + "]", set});
}

void Options::real(const std::string& name, double* value, double least, double most,
                   const std::string& help) {
    const auto set = [=](const std::string& text) {
        double read = 0;
        if (!read_real(text, &read) || read < least || read > most) {
            return false;
        }
        *value = read;
        return true;
    };
    const std::string accepts = "a number from " + short_form(least) + " to " + short_form(most);
    options_.push_back({name, accepts, help + " [" + short_form(*value) + "]", set});
}

void Options::choice(const std::string& name, std::string* value, std::vector<std::string> choices,
                     const std::string& help) {
    std::string accepts;
    for (const auto& one : choices) {
        accepts += (accepts.empty() ? "" : " or ") + one;
    }
    const auto set = [=](const std::string& text) {
        for (const auto& one : choices) {
            if (one == text) {
                *value = text;
                return true;
            }
        }
        return false;
    };
    options_.push_back({name, accepts, help + " [" + *value + "]", set});
}

void Options::file(const std::string& name, std::string* value, bool required, const std::string& help) {
    const auto set = [=](const std::string& text) {
        *value = text;
        return !text.empty();
    };
    options_.push_back({name, "a file name", help + (required ? " (needed)" : ""), set, required});
}

bool Options::parse(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        std::string word = argv[i];
        if (word == "--help" || word == "-h") {
            print_help();
            return false;
        }
        const auto equals = word.find('=');
        const std::string name = word.substr(0, equals);
        Option& option = find(name);
        if (equals == std::string::npos && i + 1 == argc) {
            throw usage_error(name + ": value missing; give " + option.accepts);
        }
        const std::string value = equals == std::string::npos ? argv[++i] : word.substr(equals + 1);
        if (!option.set(value)) {
            throw usage_error(name + " " + value + ": not accepted; give " + option.accepts);
        }
        option.given = true;
    }
    for (const auto& option : options_) {
        if (option.required && !option.given) {
            throw usage_error(option.name + " is missing; give " + option.accepts + ", or see --help");
        }
    }
    return true;
}

Options::Option& Options::find(const std::string& name) {
    std::string known;
    for (auto& option : options_) {
        if (option.name == name) {
            return option;
        }
        known += " " + option.name;
    }
    throw usage_error(name + ": no such option; known are" + known + " --help");
}

void Options::print_help() const {
    if (!speaks_for_all()) {
        return;
    }
    std::printf("%s\n\nOptions, with [what holds if not given]:\n", story_.c_str());
    for (const auto& option : options_) {
        std::printf("%s\n%s\n", beside("  " + option.name, option.help).c_str(),
                    beside("", "Accepts " + option.accepts + ".").c_str());
    }
    std::printf("\n%s\nExit codes: 0 done, 1 wrong result, 2 error, 64 wrong usage.\n", examples_.c_str());
}

}  // namespace workload
