//! Level and format of the log, both changeable at run time.

use std::io::{self, Write as _};
use std::time::Duration;

use hive::{ConfigError, Hive, HiveError};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Registry, reload};

use crate::counts::{Counts, LineCounts};
use crate::line::{SEPARATOR, SharedFormat};
use crate::options::{LogConfig, LogOptions};
use crate::sink::Sink;

/// Limit of the wait for a log that is not read, at the end of the process.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The first layer of the subscriber, which filters the process's events by level.
pub type LogFilter = reload::Layer<LevelFilter, Registry>;

/// A handle that changes level and format of the log at run time.
#[derive(Clone, Debug)]
pub struct LogLevel {
    filter: reload::Handle<LevelFilter, Registry>,
    format: SharedFormat,
    sink: Sink,
    counts: Counts,
}

/// Returns a filter to install, and its handle.
#[must_use]
pub fn filter() -> (LogFilter, LogLevel) {
    let (layer, filter) = reload::Layer::new(LevelFilter::INFO);
    let format = SharedFormat::default();
    let sink = Sink::new(format.clone(), |lines| io::stderr().write_all(lines));
    (layer, LogLevel { filter, format, sink, counts: Counts::default() })
}

impl LogLevel {
    /// Writes lines on a thread. A program calls it once it has the privileges that its threads shall have. A caller
    /// waits for its line for 50 ms at most; a megabyte is kept for a log that is not read, further lines are counted.
    pub fn start_writer(&self) {
        self.sink.start_writer();
    }

    /// Waits until all lines are written, for a second at most. To be called before the process ends.
    pub fn flush(&self) {
        self.sink.flush(FLUSH_LIMIT);
    }

    /// Installs a subscriber that writes events to standard error. Only the first call of a process has an effect on the
    /// subscriber.
    pub fn install(&self, filter: LogFilter, options: LogOptions, debug: bool) {
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(self.sink.clone())
            .fmt_fields(debug_fn(|out, field, value| write!(out, "{field}={value:?}{SEPARATOR}")))
            .event_format(self.format.clone());
        let subscriber = tracing_subscriber::registry().with(filter).with(self.counts.clone()).with(lines);
        // A second installation (several agents in one process) keeps the first.
        let _ = tracing::subscriber::set_global_default(subscriber);
        self.set(options, debug);
    }

    /// Installs the subscriber with the options of a built hive, before any cell is built, so that errors of constructors are
    /// logged in the configured format; with defaults if the hive was not built. `debug` reads the option for debug lines.
    ///
    /// # Errors
    /// That of the build, or of the options.
    pub fn install_for(
        &self,
        filter: LogFilter,
        built: Result<Hive, HiveError>,
        debug: impl FnOnce(&Hive) -> Result<bool, ConfigError>,
    ) -> Result<Hive, HiveError> {
        let options = |hive: &Hive| Ok((hive.config::<LogConfig>()?.log_opt, debug(hive)?));
        let ready = built.and_then(|hive| match options(&hive) {
            Ok(options) => Ok((hive, options)),
            Err(error) => Err(HiveError::Config(vec![error])),
        });
        match ready {
            Ok((hive, (options, debug))) => {
                self.install(filter, options, debug);
                Ok(hive)
            }
            Err(error) => {
                self.install(filter, LogOptions::default(), false);
                Err(error)
            }
        }
    }

    /// Returns the counters of logged warnings and errors, which count if this handle's subscriber is installed.
    pub fn line_counts(&self) -> LineCounts {
        self.counts.all()
    }

    /// Applies format and level of `options`; with `debug` the level is at least debug.
    pub fn set(&self, options: LogOptions, debug: bool) {
        let level = if debug { options.level.max(LevelFilter::DEBUG) } else { options.level };
        self.format.set(options.format);
        // Fails only if no subscriber holds the filter, in which case nothing is logged.
        let _ = self.filter.modify(|filter| *filter = level);
    }
}
