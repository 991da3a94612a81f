//! A long measurement in parts, each kept as soon as it is there: what was interrupted goes on with the
//! same command.

use crate::quick;
use anyhow::{Context, Result, ensure};
use keeptime::machine::Machine;
use keeptime::{files, interrupt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The parts that are there, by name.
#[derive(Debug)]
pub struct Parts {
    path: PathBuf,
    kept: BTreeMap<String, Value>,
}

impl Parts {
    /// Those that an earlier run left in `directory`. A quick run and a whole one go on with their own.
    pub fn open(directory: &Path) -> Result<Self> {
        let path = directory.join(if quick() { "parts-quick.json" } else { "parts.json" });
        let kept: BTreeMap<_, _> = match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text)
                .with_context(|| format!("{} is damaged: remove it", path.display()))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).context(path.display().to_string()),
        };
        if !kept.is_empty() {
            eprintln!("going on with {} ({} parts)", path.display(), kept.len());
        }
        Ok(Self { path, kept })
    }

    /// The part `name`: as it is kept, or else measured now, and kept.
    pub fn part<T: Serialize + DeserializeOwned>(
        &mut self,
        name: &str,
        measure: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if let Some(kept) = self.kept(name)? {
            return Ok(kept);
        }
        let path = self.path.display();
        ensure!(!interrupt::stopped(), "interrupted; {path} has {} parts", self.kept.len());
        let measured = measure()?;
        self.kept.insert(name.to_owned(), serde_json::to_value(&measured)?);
        files::save_json(&self.path, &self.kept)?;
        Ok(measured)
    }

    /// The part `name`, if it is kept.
    ///
    /// # Errors
    /// If it is of another shape.
    pub fn kept<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.kept.get(name) else { return Ok(None) };
        let path = self.path.display();
        let kept = serde_json::from_value(value.clone())
            .with_context(|| format!("{path}, {name}: made by another version: remove it"))?;
        Ok(Some(kept))
    }

    /// Whether the part `name` is kept.
    pub fn has(&self, name: &str) -> bool {
        self.kept.contains_key(name)
    }

    /// The machine on which all parts are measured: this one.
    ///
    /// # Errors
    /// If it is not the one that those were measured on that are there: figures of two machines make no page.
    pub fn machine(&mut self) -> Result<Machine> {
        let here = Machine::here();
        let kept = self.part("machine", || Ok(here.clone()))?;
        ensure!(
            kept.is_like(&here),
            "{} was measured on another machine ({kept}; this is {here}): remove it to measure anew",
            self.path.display()
        );
        Ok(kept)
    }

    /// All are there and written elsewhere: the next run measures anew.
    pub fn finish(self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).context(self.path.display().to_string())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn what_was_measured_before_a_failure_is_not_measured_again() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Parts::open(directory.path()).unwrap();
        let mut parts = open();
        assert_eq!(parts.part("one", || Ok(vec![Some(1.5), None])).unwrap(), [Some(1.5), None]);
        assert!(parts.part("two", || -> Result<f64> { bail!("killed") }).is_err());

        let mut parts = open();
        assert!(parts.has("one") && !parts.has("two"));
        assert_eq!(parts.kept::<Vec<Option<f64>>>("one").unwrap(), Some(vec![Some(1.5), None]));
        assert_eq!(parts.kept::<f64>("two").unwrap(), None);
        let again = || -> Result<Vec<Option<f64>>> { bail!("measured again") };
        assert_eq!(parts.part("one", again).unwrap(), [Some(1.5), None]);
        assert_eq!(parts.part("two", || Ok(2.0)).unwrap(), 2.0);
        parts.finish().unwrap();
        assert_eq!(open().part("one", || Ok(3.0)).unwrap(), 3.0);
    }

    #[test]
    fn parts_of_another_machine_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let open = || Parts::open(directory.path()).unwrap();
        let here = open().machine().unwrap();
        assert_eq!(open().machine().unwrap(), here, "as it was when it began");
        let other = Machine { kernel: "0.1".into(), ..here };
        let kept = BTreeMap::from([("machine", &other)]);
        files::save_json(&open().path, &kept).unwrap();
        let error = open().machine().unwrap_err().to_string();
        assert!(error.contains("Linux 0.1") && error.contains("remove it"), "{error}");
    }

    #[test]
    fn what_cannot_be_read_is_told_and_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let mut parts = Parts::open(directory.path()).unwrap();
        parts.part("one", || Ok(1.0)).unwrap();
        let error = parts.part("one", || Ok(String::new())).unwrap_err();
        assert!(error.to_string().contains("another version"), "{error}");
        fs::write(&parts.path, "{").unwrap();
        let error = Parts::open(directory.path()).unwrap_err();
        assert!(error.to_string().contains("is damaged: remove it"), "{error}");
    }
}
