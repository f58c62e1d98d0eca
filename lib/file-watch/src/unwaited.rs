//! Values whose drop is not waited for.

use std::ops::{Deref, DerefMut};

/// A value that is dropped on a blocking thread of the runtime, if there is one: for inotify instances. The kernel frees an
/// instance after a grace period of its watches, which took 8 ms on the median of a busy machine and up to half a second;
/// a thread of the executor must not wait that long, nor the stop of a job.
#[derive(Debug)]
pub struct Unwaited<T: Send + 'static>(Option<T>);

/// The message of a state that cannot be.
const PRESENT: &str = "only the drop takes the value";

impl<T: Send + 'static> Unwaited<T> {
    /// Returns the value with such a drop.
    pub fn new(value: T) -> Unwaited<T> {
        Unwaited(Some(value))
    }
}

impl<T: Send + 'static> Deref for Unwaited<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(PRESENT)
    }
}

impl<T: Send + 'static> DerefMut for Unwaited<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(PRESENT)
    }
}

impl<T: Send + 'static> Drop for Unwaited<T> {
    fn drop(&mut self) {
        let value = self.0.take();
        // Without a runtime it is dropped here, as by one that ends: then the process ends, too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn_blocking(move || drop(value)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::ThreadId;
    use std::time::Duration;

    use super::*;

    /// Reports the thread of its drop, which waits for a permission.
    struct Slow(Receiver<()>, Sender<ThreadId>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _permitted = self.0.recv_timeout(Duration::from_secs(60));
            let _reported = self.1.send(std::thread::current().id());
        }
    }

    #[test]
    fn a_slow_drop_is_not_waited_for() {
        let ((permit, permitted), (report, reported)) = (channel(), channel());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            drop(Unwaited::new(Slow(permitted, report)));
            // Dropped on this thread, it would have waited for this.
            permit.send(()).unwrap();
        });
        assert_ne!(reported.recv().unwrap(), std::thread::current().id());
    }

    #[test]
    fn without_a_runtime_it_is_dropped_at_once() {
        let ((permit, permitted), (report, reported)) = (channel(), channel());
        permit.send(()).unwrap();
        drop(Unwaited::new(Slow(permitted, report)));
        assert_eq!(reported.try_recv().unwrap(), std::thread::current().id());
    }
}
