//! A panic of any task is a fault of the run, although tokio catches it.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    /// Those of the run in this thread.
    static CAUGHT: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

fn note(info: &PanicHookInfo<'_>) -> bool {
    let noted = CAUGHT.try_with(|caught| {
        let mut caught = caught.try_borrow_mut().ok()?;
        caught.as_mut()?.push(info.to_string());
        Some(())
    });
    noted.is_ok_and(|noted| noted.is_some())
}

/// What `run` returns, unless it panics, and the panics of its tasks.
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> (Option<T>, Option<String>) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = take_hook();
        set_hook(Box::new(move |info| {
            if !note(info) {
                others(info);
            }
        }));
    });
    CAUGHT.replace(Some(Vec::new()));
    let done = catch_unwind(AssertUnwindSafe(run)).ok();
    let caught = CAUGHT.take().unwrap_or_default();
    (done, (!caught.is_empty()).then(|| caught.join("\n")))
}
