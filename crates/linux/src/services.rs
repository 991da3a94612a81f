//! What runs on a node as a service, and counts to a job as long as the job lasts.
//!
//! systemd has a group for each service, inside of a slice, in the hierarchy of version 2 (systemd.slice(5),
//! systemd.service(5)): there its processes are found, also those that are started later. A node without an
//! init system, of a lab, has such groups inside of [`Group::rest`].

use crate::cgroup::{CgroupError, Group, make_directory, processes_below, refused};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

impl Group {
    /// The processes of a service of the node whose group this is: those that no job has taken in. None if there
    /// is no such service. Reads one directory for each slice.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn service_processes(&self, unit: &str) -> Result<Vec<i32>, CgroupError> {
        let mut found = with_name(self.root_of_version_2()?, unit)?;
        found.extend(with_name(&self.rest()?.in_version_2()?, unit)?);
        let mut pids = Vec::new();
        for group in &found {
            pids.extend(processes_below(group)?);
        }
        // 0 stands for a process of another process namespace: of another node.
        pids.retain(|pid| *pid > 0);
        Ok(pids)
    }

    /// The `cgroup.procs` files of a service of the node whose group this is, where nobody else makes its group:
    /// as [`Group::open_to_join`].
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn open_service_to_join(&self, unit: &str) -> Result<Vec<File>, CgroupError> {
        let rest = self.rest()?;
        let directory = rest.in_version_2()?.join(unit);
        make_directory(&directory)?;
        let mut files = rest.open_to_join()?;
        let path = directory.join("cgroup.procs");
        // Last: in version 2 it leaves the rest for the group inside.
        files.push(OpenOptions::new().write(true).open(&path).map_err(refused("open", &path))?);
        Ok(files)
    }

    /// Makes the services `units` of `node` belong to the job whose group this is, and lets other services go back.
    /// A second call takes in what was started in between.
    ///
    /// # Errors
    /// If the group is away, or the kernel refuses.
    pub fn take_services(&self, node: &Group, units: &[String]) -> Result<(), CgroupError> {
        self.give_back_services(|unit| !units.iter().any(|wanted| wanted == unit))?;
        for unit in units {
            for pid in node.service_processes(unit)? {
                match self.borrow_of_service(pid, unit) {
                    // It has ended meanwhile.
                    Err(error) if error.is_away() && self.exists() => {}
                    taken => taken?,
                }
            }
        }
        Ok(())
    }
}

/// The groups called `unit` right inside of `directory`, or of slices in it.
fn with_name(directory: &Path, unit: &str) -> Result<Vec<PathBuf>, CgroupError> {
    let (mut found, mut open) = (Vec::new(), vec![directory.to_path_buf()]);
    while let Some(next) = open.pop() {
        let entries = match std::fs::read_dir(&next) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(refused("open", &next))?,
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if name == unit {
                found.push(entry.path());
            } else if name.to_str().is_some_and(|name| name.ends_with(".slice")) {
                open.push(entry.path());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_in_slices_however_deep_and_nowhere_else() {
        let root = tempfile::tempdir().unwrap();
        let unit = "nginx@shop.service";
        let inside =
            ["system.slice/system-nginx.slice", "own.slice", "", "keeptime/r1", "a.service"];
        for directory in inside {
            std::fs::create_dir_all(root.path().join(directory).join(unit)).unwrap();
        }
        std::fs::create_dir_all(root.path().join("system.slice/nginx@blog.service")).unwrap();
        let mut found = with_name(root.path(), unit).unwrap();
        found.sort();
        let wanted = ["", "own.slice", "system.slice/system-nginx.slice"];
        assert_eq!(found, wanted.map(|directory| root.path().join(directory).join(unit)));
        assert!(with_name(&root.path().join("away"), unit).unwrap().is_empty());
    }
}
