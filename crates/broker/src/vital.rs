//! Tasks without which the broker only looks alive.

use keeptime_linux::vital::end;

/// Starts a task whose panic ends the process, as [`keeptime_linux::vital`] does it for threads. Inside of a runtime.
pub(crate) fn spawn(name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
    let running = tokio::spawn(task);
    tokio::spawn(async move {
        // One that was cancelled has ended with its runtime.
        if running.await.is_err_and(|error| error.is_panic()) {
            end(name);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    const DOOMED: &str = "KEEPTIME_TEST_TASK";

    async fn fails() {
        panic!("a bug")
    }

    // The process that the next test looks at: it has much time to end in by itself.
    #[test]
    fn doomed() {
        if std::env::var_os(DOOMED).is_none() {
            return;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let _inside = runtime.enter();
        spawn("a task", fails());
        std::thread::sleep(Duration::from_secs(30));
    }

    #[test]
    fn the_end_of_a_task_is_that_of_the_broker() {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -c 0; exec \"$0\" --exact vital::tests::doomed"]);
        command.arg(std::env::current_exe().unwrap()).env(DOOMED, "1");
        let ended = command.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(ended.signal(), Some(Signal::SIGABRT as i32), "{ended}");
    }

    // A runtime that ends, as in every broker that is stopped, is no bug.
    #[test]
    fn a_task_that_is_over_or_cancelled_ends_nothing() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let inside = runtime.enter();
        spawn("over", async {});
        spawn("cancelled", std::future::pending());
        drop(inside);
        drop(runtime);
    }
}
