//! The chart of now: what the directory has told until the moment when it is asked.

use crate::chart::{Chart, of_server, of_table};
use keeptime_fabric::{Context, Event, FindError, Watcher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Watches one table.
#[derive(Debug)]
pub struct Survey {
    context: Arc<Context>,
    name: String,
    watched: Mutex<(Watcher, Arc<Chart>)>,
}

impl Survey {
    /// Begins to watch the table `name`.
    ///
    /// # Errors
    /// If the directory does not answer.
    pub fn new(context: Arc<Context>, name: &str) -> Result<Self, FindError> {
        let watched = Mutex::new(watch(&context, name)?);
        Ok(Self { context, name: name.into(), watched })
    }

    /// Who there is. The same one as before if nothing has changed.
    ///
    /// # Errors
    /// If the directory does not answer.
    pub fn chart(&self) -> Result<Arc<Chart>, FindError> {
        // A look reads what the directory's server has pushed, for watchers as well.
        match self.context.find(of_server(&self.name)).one_of_any() {
            Ok(_) | Err(FindError::None(_)) => {}
            Err(error) => return Err(error),
        }
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let (watcher, chart) = &mut *watched;
        while let Some(event) = watcher.next_within(Duration::ZERO) {
            match event {
                Event::Appeared(record) => {
                    Arc::make_mut(chart).appeared(record.id, &record.attributes);
                }
                Event::Disappeared(id) => Arc::make_mut(chart).gone(id),
                // More was missed than can be told one by one.
                _ => (*watcher, *chart) = watch(&self.context, &self.name)?,
            }
        }
        Ok(chart.clone())
    }
}

fn watch(context: &Context, name: &str) -> Result<(Watcher, Arc<Chart>), FindError> {
    let (records, watcher) = context.find(of_table(name)).watch()?;
    let mut chart = Chart::default();
    records.iter().for_each(|record| chart.appeared(record.id, &record.attributes));
    Ok((watcher, Arc::new(chart)))
}
