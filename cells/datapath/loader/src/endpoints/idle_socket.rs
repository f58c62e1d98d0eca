//! A netlink socket that is kept open between two uses: to open and close one costs seven system calls, more than the
//! requests of an endpoint.

use crate::endpoints::lock_order::{Mutex, Rank};

/// A socket of the agent's network namespace. Concurrent users have one each, of which one is kept; the lock is not held while
/// the kernel works.
#[derive(Debug)]
pub(crate) struct IdleSocket<T>(Mutex<Option<T>>);

impl<T> IdleSocket<T> {
    /// Returns one without a socket: the first use opens it.
    pub(crate) const fn new() -> IdleSocket<T> {
        IdleSocket(Mutex::new(Rank::State, None))
    }

    /// Calls `run` with a socket. It is closed after an error, which may have left responses in it.
    pub(crate) fn with<R, E>(
        &self,
        open: impl FnOnce() -> Result<T, E>,
        run: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Result<R, E> {
        let kept = self.0.lock().take();
        let mut socket = match kept {
            Some(socket) => socket,
            None => open()?,
        };
        let done = run(&mut socket)?;
        // That of a concurrent use is closed after the lock is released.
        let _surplus = self.0.lock().replace(socket);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_socket_is_opened_once_and_again_after_an_error_or_beside_another_use() {
        let opened = Cell::new(0);
        let open = || {
            opened.set(opened.get() + 1);
            Ok::<_, ()>(opened.get())
        };
        let kept = IdleSocket::new();
        assert_eq!(kept.with(open, |socket| Ok(*socket)), Ok(1));
        assert_eq!(kept.with(open, |socket| Ok(*socket)), Ok(1));
        assert_eq!(kept.with(open, |_| Err::<(), _>(())), Err(()));
        assert_eq!(kept.with(open, |socket| Ok(*socket)), Ok(2));
        let beside = kept.with(open, |socket| Ok((*socket, kept.with(open, |other| Ok(*other)))));
        assert_eq!(beside, Ok((2, Ok(3))));
        assert_eq!(kept.with(|| Err(()), |socket| Ok(*socket)), Ok(2));
        assert_eq!(IdleSocket::<u8>::new().with(|| Err(()), |socket| Ok(*socket)), Err(()));
    }
}
