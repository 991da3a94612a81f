// Command-line options: declared once, used for parsing, for mistakes and for --help.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace workload {

class Options {
  public:
    /// `story`: what the program does, the first part of --help. `examples`: its last part. Their lines end by
    /// column 80; what is said of options is broken into such.
    Options(std::string name, std::string story, std::string examples);

    void number(const std::string& name, int* value, int least, int most, const std::string& help);
    void real(const std::string& name, double* value, double least, double most, const std::string& help);
    void choice(const std::string& name, std::string* value, std::vector<std::string> choices,
                const std::string& help);
    /// A file name; it must be given if `required`.
    void file(const std::string& name, std::string* value, bool required, const std::string& help);

    /// Accepts `--name VALUE` and `--name=VALUE`. Throws Failure with the option, its value and what
    /// would be accepted. False: help was wanted and given, there is nothing left to do.
    bool parse(int argc, char** argv);

  private:
    struct Option {
        std::string name;
        std::string accepts;
        std::string help;
        std::function<bool(const std::string&)> set;
        bool required = false;
        bool given = false;
    };

    Option& find(const std::string& name);
    void print_help() const;

    std::string name_;
    std::string story_;
    std::string examples_;
    std::vector<Option> options_;
};

}  // namespace workload
