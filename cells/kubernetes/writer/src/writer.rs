//! The handle by which cells enqueue mutations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use statedb::{RwTable, Writer as TableWriter};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::mutation::{Mutation, NotWritten, Written};
use crate::target::Target;
use crate::write::{QueuedMutation, Write, WriteState};

/// A handle to enqueue mutations of cluster objects.
#[derive(Debug)]
pub struct Writer {
    /// None without an API server.
    table: Option<RwTable<Write>>,
    /// Set within a transaction, so that it is ordered with all enqueues.
    stopped: AtomicBool,
    numbers: AtomicU64,
}

impl Writer {
    pub(crate) fn new(table: Option<RwTable<Write>>) -> Writer {
        Writer { table, stopped: AtomicBool::new(false), numbers: AtomicU64::new(1) }
    }

    /// Whether there is an API server to write to. Without one mutations end at once.
    pub fn has_server(&self) -> bool {
        self.table.is_some()
    }

    /// Enqueues a mutation of an object, which replaces a previous one of the same object. It is executed as soon as
    /// possible, whether or not the caller waits for the ticket.
    pub fn enqueue(&self, target: Target, mutation: Mutation) -> Ticket {
        let (ended, end) = watch::channel(None);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let queued = Arc::new(QueuedMutation { target, number, mutation, ended });
        let ticket = Ticket { target: queued.target.to_string(), end };
        let Some(table) = &self.table else {
            queued.finish(Err(NotWritten::NoServer { target: ticket.target.clone() }));
            return ticket;
        };
        table.transact(|w| {
            if self.stopped.load(Ordering::Relaxed) {
                return queued.finish(Err(NotWritten::Stopped { target: ticket.target.clone() }));
            }
            withdraw(w, &queued.target);
            w.insert(Write {
                object: ticket.target.clone(),
                verb: queued.mutation.verb(),
                state: WriteState::Waiting,
                attempts: 0,
                error: String::new(),
                since: Instant::now(),
                tried: None,
                mutation: queued.clone(),
            });
        });
        ticket
    }

    /// Withdraws the mutations of an object and its parts. A request in flight completes.
    pub fn forget(&self, target: &Target) {
        if let Some(table) = &self.table {
            table.transact(|w| withdraw(w, target));
        }
    }

    /// Closes the queue; returns the targets of the remaining mutations, whose tickets end as stopped.
    pub(crate) fn close(&self) -> Vec<String> {
        let Some(table) = &self.table else { return Vec::new() };
        let (left, _) = table.transact(|w| {
            self.stopped.store(true, Ordering::Relaxed);
            let left: Vec<Arc<QueuedMutation>> = w.all().map(|row| row.mutation.clone()).collect();
            w.delete_all();
            left
        });
        let finish = |queued: Arc<QueuedMutation>| {
            let target = queued.target.to_string();
            queued.finish(Err(NotWritten::Stopped { target: target.clone() }));
            target
        };
        left.into_iter().map(finish).collect()
    }
}

/// Removes the mutation of a target; for a complete object, those of its parts too. A mutation with a request in flight
/// is ended by its attempt.
fn withdraw(w: &mut TableWriter<'_, Write>, target: &Target) {
    let name = target.to_string();
    let mut gone = vec![name.clone()];
    if target.part.is_empty() {
        gone.extend(w.prefix(Write::by_object_prefix(&format!("{name}#"))).map(|row| row.object.clone()));
    }
    for object in gone {
        if let Some(row) = w.delete(Write::by_object(&object))
            && row.state != WriteState::Writing
        {
            row.mutation.superseded();
        }
    }
}

/// A handle to wait for a mutation. Dropping it has no effect on the mutation.
#[derive(Debug)]
pub struct Ticket {
    target: String,
    end: watch::Receiver<Option<Result<Written, NotWritten>>>,
}

impl Ticket {
    /// Waits until the mutation is completed or has failed.
    pub async fn done(mut self) -> Result<Written, NotWritten> {
        let stopped = NotWritten::Stopped { target: self.target };
        match self.end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or(Err(stopped)),
            Err(_) => Err(stopped),
        }
    }
}
