//! One run under what is held for it.

use crate::commands::Session;
use crate::execute::{ExecuteError, Execution, Ran, Run};
use crate::hold::Hold;
use crate::pacing::Paced;
use crate::promised::Promised;
use anyhow::Result;
use keeptime_launch::process::Said;
use keeptime_model::errors::chain;
use keeptime_model::units::Nanos;

/// A run with what was reserved for it.
pub struct Kept {
    /// How it went.
    pub ran: Ran,
    /// What it would have taken with all of its CPU: the same but for a steady run.
    pub at_full: Nanos,
}

/// Runs the application once, with what `hold` has.
///
/// # Errors
/// If it does not do its part.
pub fn run_once(
    session: &Session,
    promised: &Promised,
    hold: &Hold,
    on_said: &mut dyn FnMut(Said<'_>),
) -> Result<Ran> {
    let run = as_promised(session, promised);
    Execution::new(&session.cluster, &session.mpi, run).under(hold, on_said)
}

/// Runs the application with what was reserved for it, and tells the broker what that took. A
/// `steady` run takes what was promised for it, so it is told what it would have taken.
///
/// # Errors
/// If it does not do its part, or is to be steady and tells no progress.
pub fn run_reserved(
    session: &Session,
    promised: &Promised,
    hold: &Hold,
    steady: bool,
    on_said: &mut dyn FnMut(Said<'_>),
) -> Result<Kept> {
    let Session { cluster, application, .. } = session;
    let paced = || Paced::new(cluster, application, &session.fitted()?, promised, hold);
    let mut paced = steady.then(paced).transpose()?;
    let ran = run_once(session, promised, hold, &mut |said| {
        if let (Some(paced), Said::Out(line)) = (&mut paced, said) {
            paced.line(line);
        }
        on_said(said);
    })?;
    // The run is done in any case.
    let at_full = paced.and_then(|paced| paced.at_full()).unwrap_or(ran.time);
    if let Err(error) = hold.report(at_full) {
        tracing::warn!("the broker does not learn what the run took: {}", chain(&error));
    }
    Ok(Kept { ran, at_full })
}

/// Whether a run ended since what it ran with was taken away.
pub(super) fn is_lost(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(ExecuteError::Lost { .. }))
}

/// Its rates are the broker's business.
pub(super) fn as_promised<'a>(session: &'a Session, promised: &'a Promised) -> Run<'a> {
    let Promised { parameters, nodes, .. } = promised;
    Run { application: &session.application, parameters, nodes, rate: None }
}
