//! Files that a balancer reads whenever it starts, and so after the power was lost: what they said before or what they
//! say now, whole.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// What is added to a file's name until it takes the file's place. Nobody else calls a file so, and what reads all files
/// that end in a certain way does not read it.
const NEW: &str = ".keeptime-new";

/// Has `file` say `text`. It keeps its mode.
pub(crate) fn replace(file: &Path, text: &str) -> io::Result<()> {
    let mut name = file.file_name().unwrap_or_default().to_os_string();
    name.push(NEW);
    let new = file.with_file_name(name);
    // Of whoever was killed here before.
    if_there(fs::remove_file(&new))?;
    let mut written = File::create_new(&new)?;
    written.write_all(text.as_bytes())?;
    if let Some(there) = if_there(fs::metadata(file))? {
        written.set_permissions(there.permissions())?;
    }
    // A name may get to the disk before what it names: then it names an empty file.
    written.sync_all()?;
    fs::rename(&new, file)
}

/// Nothing where there is no such file.
fn if_there<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_keeps_its_mode_and_what_a_killed_writer_left_is_in_nobodys_way() {
        let directory = tempfile::tempdir().unwrap();
        let [file, new] =
            ["shop.upstream", "shop.upstream.keeptime-new"].map(|name| directory.path().join(name));
        replace(&file, "first").unwrap();
        for mode in [0o440, 0o604] {
            fs::write(&new, "longer than what comes").unwrap();
            fs::set_permissions(&new, Permissions::from_mode(0o400)).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            replace(&file, "second").unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), "second");
            assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, mode);
            assert!(!new.exists());
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_says_what_it_said() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("shop.upstream");
        fs::write(&file, "before").unwrap();
        // No file can take the place of this one.
        fs::create_dir(directory.path().join("shop.upstream.keeptime-new")).unwrap();
        assert!(replace(&file, "after").is_err());
        assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    }

    #[test]
    fn files_of_others_are_left_alone_whatever_they_are_called() {
        let directory = tempfile::tempdir().unwrap();
        let [file, others] = ["shop.upstream", "shop.new"].map(|name| directory.path().join(name));
        fs::write(&others, "somebody's").unwrap();
        replace(&file, "ours").unwrap();
        assert_eq!(fs::read_to_string(&others).unwrap(), "somebody's");
    }
}
