//! Owns starting a program on given nodes and learning its execution time; never chooses nodes and
//! never enforces anything.
//!
//! * [`hostlist`]: lists of names as Slurm writes them (pure);
//! * [`mpi`]: which MPI is installed and the command line that starts ranks on given hosts (pure);
//! * [`remote`]: nodes that are reached as by `ssh` (pure);
//! * [`slurm`]: the nodes of a job of Slurm's, reached by its steps (pure);
//! * [`subnet`]: a network by the addresses on it (pure);
//! * [`process`]: one bounded run of a command, its output, its end;
//! * [`told_time`]: the execution time as the application tells it (pure).
#![forbid(unsafe_code)]

pub mod hostlist;
pub mod mpi;
pub mod process;
pub mod remote;
pub mod slurm;
pub mod subnet;
pub mod told_time;
