//! The log lines of the cells of one hive.
//!
//! Nothing is global: the hive polls its constructors, hooks and jobs with a subscriber of its own, whatever thread
//! they run on. So concurrent hives do not see each other's lines, and a global subscriber stays in place.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Metadata, Subscriber};
use tracing_core::span::Current;

/// The maximum number of lines; older ones are dropped.
const KEPT: usize = 20_000;

/// A line that a cell, or the hive on behalf of it, has logged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The level.
    pub level: tracing::Level,
    /// The path of the module that wrote it, or that the hive reports about; empty for the hive as a whole.
    pub module: Arc<str>,
    /// The path of the Rust module that wrote it, unless the line sets another target.
    pub target: &'static str,
    /// The message.
    pub message: String,
    /// Its other fields in order, with formatted values.
    pub fields: Vec<(&'static str, String)>,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Record { level, module, message, fields, .. } = self;
        write!(f, "{level} {}: {message}", if module.is_empty() { "hive" } else { module })?;
        fields.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

/// The lines of one hive.
#[derive(Clone)]
pub(super) struct Logs(Arc<Kept>);

struct Kept {
    /// Distinguishes the entered spans of this hive from those of other hives on the same thread.
    number: u64,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    spans: HashMap<u64, Span>,
    last_span: u64,
    records: VecDeque<Record>,
}

struct Span {
    metadata: &'static Metadata<'static>,
    module: Arc<str>,
    handles: usize,
}

thread_local! {
    /// Spans that this thread is in, the innermost last, by hive and id.
    static ENTERED: RefCell<Vec<(u64, u64)>> = const { RefCell::new(Vec::new()) };
}

/// Accesses the spans that this thread is in; `None` during the thread's end, when they are irrelevant.
fn on_thread<R>(f: impl FnOnce(&mut Vec<(u64, u64)>) -> R) -> Option<R> {
    ENTERED.try_with(|entered| f(&mut entered.borrow_mut())).ok()
}

impl Logs {
    pub(super) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Logs(Arc::new(Kept { number, inner: Mutex::default() }))
    }

    pub(super) fn records(&self) -> Vec<Record> {
        self.0.inner.lock().records.iter().cloned().collect()
    }

    /// Returns the innermost span that this thread is in.
    fn entered(&self) -> Option<u64> {
        let own = |entered: &&(u64, u64)| entered.0 == self.0.number;
        on_thread(|entered| entered.iter().rev().find(own).map(|(_, span)| *span)).flatten()
    }

    /// Returns the module of a span, or of the one that this thread is in.
    fn module(&self, parent: Option<&Id>, is_root: bool) -> Arc<str> {
        let span = match parent {
            Some(parent) => Some(parent.into_u64()),
            None if is_root => None,
            None => self.entered(),
        };
        let inner = self.0.inner.lock();
        span.and_then(|span| inner.spans.get(&span)).map_or_else(|| "".into(), |span| span.module.clone())
    }
}

impl Subscriber for Logs {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let module = match fields.module.filter(|_| metadata.name() == "cell") {
            Some(module) => module.into(),
            None => self.module(attributes.parent(), attributes.is_root()),
        };
        let mut inner = self.0.inner.lock();
        inner.last_span += 1;
        let number = inner.last_span;
        inner.spans.insert(number, Span { metadata, module, handles: 1 });
        Id::from_u64(number)
    }

    fn record(&self, _: &Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        // Values are formatted before the lock is taken: their code may log, too.
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut module = self.module(event.parent(), event.is_root());
        let Fields { message, module: logged, mut all } = fields;
        match logged {
            Some(logged) if module.is_empty() => module = logged.into(),
            Some(logged) if *logged != *module => all.push(("module", logged)),
            _ => {}
        }
        let metadata = event.metadata();
        let (level, target) = (*metadata.level(), metadata.target());
        let record = Record { level, module, target, message, fields: all };
        let mut inner = self.0.inner.lock();
        if inner.records.len() == KEPT {
            inner.records.pop_front();
        }
        inner.records.push_back(record);
    }

    fn enter(&self, span: &Id) {
        on_thread(|entered| entered.push((self.0.number, span.into_u64())));
    }

    fn exit(&self, span: &Id) {
        let left = (self.0.number, span.into_u64());
        on_thread(|entered| {
            if let Some(at) = entered.iter().rposition(|entered| *entered == left) {
                entered.remove(at);
            }
        });
    }

    fn clone_span(&self, span: &Id) -> Id {
        if let Some(span) = self.0.inner.lock().spans.get_mut(&span.into_u64()) {
            span.handles += 1;
        }
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let mut inner = self.0.inner.lock();
        let Some(kept) = inner.spans.get_mut(&span.into_u64()) else { return false };
        kept.handles -= 1;
        let is_last = kept.handles == 0;
        if is_last {
            inner.spans.remove(&span.into_u64());
        }
        is_last
    }

    fn current_span(&self) -> Current {
        let Some(span) = self.entered() else { return Current::none() };
        let metadata = self.0.inner.lock().spans.get(&span).map(|span| span.metadata);
        metadata.map_or_else(Current::none, |metadata| Current::new(Id::from_u64(span), metadata))
    }
}

/// The fields of a line or span, formatted.
#[derive(Default)]
struct Fields {
    message: String,
    module: Option<String>,
    all: Vec<(&'static str, String)>,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = String::new();
        if write!(text, "{value:?}").is_err() {
            text.push_str("(cannot be printed)");
        }
        match field.name() {
            "message" => self.message = text,
            "module" => self.module = Some(text),
            name => self.all.push((name, text)),
        }
    }
}
