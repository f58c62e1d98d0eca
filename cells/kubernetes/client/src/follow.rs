//! A watch: lists objects and follows their changes, across failures of connections and servers.

mod answer;
mod failure;
mod pieces;
mod version;

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use hive::{Backoff, Health};
use http::Method;
use http_body_util::BodyExt;
use k8s_types::{Kind, SmolStr, SourceError, WatchEvent};
use kube::client::Body;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::access::root_of;
use crate::definitions::{Defined, Definitions, is_custom, name};
use crate::link::{Lease, Link, request};
use crate::metrics::WatchState;
use crate::request_error::{ErrorKind, RequestError};
use crate::scan::{Shape, Splitter};
use crate::target::{Query, Target};
use crate::watch_timeouts::{WatchTimeouts, spread};
pub(crate) use version::version;

use answer::{Answer, End, Form, Phase};

/// The delay of a watch after a server has answered another request at the end of an outage, with a third of jitter.
const RECOVERY_DELAY: Duration = Duration::from_millis(500);

/// How long after a change of its definition a kind that is not served yet is asked for at short intervals.
const ESTABLISHING: Duration = Duration::from_secs(5);

/// The first of these intervals, which double, with half of jitter.
const ESTABLISHING_RETRY: Duration = Duration::from_millis(50);

/// The number of streaming lists that may break off before pages are requested, which can be resumed.
const MAX_BROKEN_STREAMS: u32 = 2;

/// A watch of one selection of objects. It makes progress only while its stream is polled, and buffers one object at a
/// time, so that a slow reader applies backpressure to the server.
pub(crate) struct Follow {
    link: Arc<Link>,
    target: Target,
    definitions: Definitions,
    timeouts: WatchTimeouts,
    state: Arc<WatchState>,
    health: Health,
    reading: Option<Reading>,
    next: Option<Result<WatchEvent, SourceError>>,
    /// The version up to which all changes are known.
    version: String,
    /// Whether the list is complete, so that a watch may continue from the version.
    listed: bool,
    /// The token of the next page of the list under way.
    continue_token: Option<String>,
    /// Whether a continue token has expired: the list is requested as one page.
    whole: bool,
    listed_at: Instant,
    relist_after: Duration,
    received_at: Instant,
    broken_streams: u32,
    bookmarks: bool,
    backoff: Backoff,
    delay: Duration,
    /// Whether the delay ends early when a server answers again.
    ends_with_outage: bool,
    /// Whether a delay has ended early since the last progress.
    ended_early: bool,
    recoveries: watch::Receiver<u64>,
    failures: u64,
    /// The number of consecutive connections that were lost without a reason.
    cuts: u32,
    /// The number of times that versions went back, and the last time.
    rewinds: (u64, Option<Instant>),
    /// The cluster that was listed, by the link's counter.
    cluster: u64,
    /// Whether a failure was logged since the last success.
    reported: bool,
    /// Whether it has waited for the definitions of kinds.
    asked: bool,
    /// The version of the kind's definition at the last request, as soon as the definitions are listed.
    definition: Option<Option<SmolStr>>,
    /// When that has changed, with the retries since.
    establishing: Option<(Instant, Backoff)>,
    /// Whether the absence of the kind was sent as an empty list.
    listed_absent: bool,
    /// Whether the kind is to be listed as empty, since the server does not serve its version.
    is_unserved: bool,
    /// Whether this was done, and nothing else was listed since.
    listed_unserved: bool,
}

/// A response that is being read.
struct Reading {
    query: Query,
    body: Body,
    pieces: Splitter,
    lease: Lease,
    cuts: watch::Receiver<u64>,
    /// The number of objects of the page so far.
    items: i64,
    progress: Answer,
}

impl Follow {
    pub(crate) fn new(
        link: Arc<Link>,
        target: Target,
        definitions: Definitions,
        timeouts: WatchTimeouts,
        state: Arc<WatchState>,
        health: Health,
    ) -> Follow {
        let now = Instant::now();
        Follow {
            recoveries: link.recoveries(),
            link,
            target,
            definitions,
            timeouts,
            state,
            health,
            reading: None,
            next: None,
            version: String::new(),
            listed: false,
            continue_token: None,
            whole: false,
            listed_at: now,
            relist_after: timeouts.relist,
            received_at: now,
            broken_streams: 0,
            bookmarks: false,
            backoff: Backoff::exponential(timeouts.retry.0, timeouts.retry.1).jitter(0.5),
            delay: Duration::ZERO,
            ends_with_outage: false,
            ended_early: false,
            failures: 0,
            cuts: 0,
            rewinds: (0, None),
            cluster: 0,
            reported: false,
            asked: false,
            definition: None,
            establishing: None,
            listed_absent: false,
            is_unserved: false,
            listed_unserved: false,
        }
    }

    /// Returns the stream of its events.
    pub(crate) fn stream(self) -> BoxStream<'static, Result<WatchEvent, SourceError>> {
        stream::unfold(self, |mut follow| async move { Some((follow.next().await, follow)) }).boxed()
    }

    async fn next(&mut self) -> Result<WatchEvent, SourceError> {
        loop {
            if let Some(next) = self.next.take() {
                return next;
            }
            let step = match self.reading {
                Some(_) => self.read().await,
                None => self.open().await,
            };
            match step {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(error) => {
                    if let Some(error) = self.failed(error) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Sends the next request.
    async fn open(&mut self) -> Result<Option<WatchEvent>, RequestError> {
        self.pause().await;
        if !self.defined().await {
            self.listed_absent = true;
            self.listed = false;
            self.next = Some(Ok(WatchEvent::Listed));
            self.state.begin();
            return Ok(Some(WatchEvent::Restart));
        }
        if std::mem::take(&mut self.is_unserved) {
            self.listed_unserved = true;
            self.listed = false;
            self.state.excuse(true);
            self.next = Some(Ok(WatchEvent::Listed));
            self.state.begin();
            self.delay = spread(self.timeouts.refused);
            return Ok(Some(WatchEvent::Restart));
        }
        // An answer to another request that comes while this one fails ends the delay that follows.
        self.recoveries.mark_unchanged();
        let lease = self.link.lease();
        if std::mem::replace(&mut self.cluster, lease.cluster) != lease.cluster {
            // Objects and versions of the previous cluster are not valid in this one.
            (self.listed, self.continue_token) = (false, None);
            self.version.clear();
        }
        let query = self.next_query(&lease);
        let seconds = match query {
            Query::Stream { seconds, .. } | Query::Watch { seconds, .. } => Duration::from_secs(seconds),
            Query::Page { .. } | Query::Whole => Duration::ZERO,
        };
        let begins =
            matches!(query, Query::Stream { .. } | Query::Page { continue_token: None } | Query::Whole);
        let (form, shape) = match query {
            Query::Page { .. } | Query::Whole => (Form::List, Shape::List),
            Query::Stream { .. } => (Form::StreamedList, Shape::Events),
            Query::Watch { .. } => (Form::Watch, Shape::Events),
        };
        let cuts = lease.cuts.clone();
        let request = request(Method::GET, &self.target.uri(&query), self.target.accept, Body::empty());
        let (name, plural, group) = (&self.target.name, self.target.plural, self.target.group);
        let sent = self.link.send(&lease, request, name, plural, group).await;
        let body = match sent {
            Ok(answer) => answer.into_body(),
            Err(error) if error.kind == ErrorKind::Invalid && matches!(query, Query::Stream { .. }) => {
                self.link.does_not_stream(&lease);
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let now = Instant::now();
        let pieces = Splitter::new(shape);
        let progress = Answer::new(form, now, seconds);
        self.reading = Some(Reading { query, body, pieces, lease, cuts, items: 0, progress });
        self.received_at = now;
        if begins {
            self.listed_unserved = false;
            self.listed = false;
            self.state.begin();
            return Ok(Some(WatchEvent::Restart));
        }
        Ok(None)
    }

    /// Waits for the delay before another attempt, or until all connections are closed or the kind's definition changes, since
    /// the attempt may succeed then. So it may when a server answers any request after an outage; but only one attempt until
    /// the next progress begins for that reason, so that a server that answers a part of the requests is not asked without
    /// delays.
    async fn pause(&mut self) {
        let delay = std::mem::take(&mut self.delay);
        if delay.is_zero() {
            return;
        }
        let begin = Instant::now();
        let mut cuts = self.link.cuts();
        let ends_with_outage = self.ends_with_outage && !self.ended_early;
        let defined = async {
            match (self.target.kind, &self.definition) {
                (Some(kind), Some(version)) if is_custom(kind) => {
                    self.definitions.changed(kind, version.as_ref()).await;
                }
                // The definitions may be listed late.
                (Some(kind), None) if is_custom(kind) => drop(self.definitions.changes().changed().await),
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep_until(begin + delay) => {}
            Ok(()) = cuts.changed() => {}
            () = defined => {}
            Ok(()) = self.recoveries.changed(), if ends_with_outage => {
                self.ended_early = true;
                // All watches of this agent are woken at the same time.
                sleep_until((Instant::now() + spread(RECOVERY_DELAY)).min(begin + delay)).await;
            }
        }
    }

    /// Waits until the kind is defined. Returns false if it is not, which is sent as an empty list.
    async fn defined(&mut self) -> bool {
        let Some(kind) = self.target.kind else { return true };
        let mut changes = self.definitions.changes();
        if self.definitions.of(kind) == Defined::Unknown && !std::mem::replace(&mut self.asked, true) {
            // Definitions are listed concurrently; if that is forbidden, the response to the kind's own request
            // decides.
            let _known = timeout(self.timeouts.list_silence, changes.changed()).await;
        }
        loop {
            changes.mark_unchanged();
            self.note_definition(kind);
            match self.definitions.of(kind) {
                Defined::Yes | Defined::Unknown => break,
                Defined::No if self.definitions.is_required(kind) || self.listed_absent => {}
                Defined::No => return false,
            }
            self.state.excuse(true);
            self.health.ok(format!("The cluster has no definition {}", name(kind)));
            if changes.changed().await.is_err() {
                break;
            }
        }
        self.state.excuse(false);
        self.listed_absent = false;
        true
    }

    /// Takes note of the version of the kind's definition. A change may mean that it has been established.
    fn note_definition(&mut self, kind: Kind) {
        if !is_custom(kind) || self.definitions.of(kind) == Defined::Unknown {
            return;
        }
        let version = self.definitions.version(kind);
        let last = self.definition.replace(version.clone());
        if last.is_some_and(|last| last != version) {
            let retries = Backoff::exponential(ESTABLISHING_RETRY, ESTABLISHING).jitter(0.5);
            self.establishing = Some((Instant::now(), retries));
        }
    }

    /// Returns the delay before the next request for a kind whose definition has changed a short time ago.
    fn establishing(&mut self) -> Option<Duration> {
        let (since, retries) = self.establishing.as_mut()?;
        if since.elapsed() < ESTABLISHING { retries.next_wait() } else { None }
    }

    fn next_query(&self, lease: &Lease) -> Query {
        let seconds = spread(self.timeouts.watch).as_secs().max(1);
        let stale =
            self.received_at.elapsed() > self.timeouts.gap || self.listed_at.elapsed() > self.relist_after;
        if self.listed && !self.version.is_empty() && !stale {
            return Query::Watch { version: self.version.clone(), seconds };
        }
        if self.continue_token.is_some() {
            return Query::Page { continue_token: self.continue_token.clone() };
        }
        if self.whole {
            return Query::Whole;
        }
        if self.broken_streams < MAX_BROKEN_STREAMS && self.link.streams(lease) {
            let version = Some(self.version.clone()).filter(|version| !version.is_empty());
            return Query::Stream { version, seconds };
        }
        Query::Page { continue_token: None }
    }

    /// Reads the next piece of the response, or waits for more data.
    async fn read(&mut self) -> Result<Option<WatchEvent>, RequestError> {
        let Some(reading) = &mut self.reading else { return Ok(None) };
        match reading.pieces.piece() {
            Ok(Some(piece)) => {
                reading.progress.on_object();
                return self.take(piece);
            }
            Ok(None) => {}
            Err(unexpected) => {
                let text = format!(
                    "{} answers nonsense about {}: {unexpected}; does something else answer at this address, a proxy or \
                     a login page?",
                    reading.lease.url, self.target.name
                );
                return Err(RequestError::new(ErrorKind::Nonsense, text));
            }
        }
        let is_between = reading.pieces.is_between();
        let phase = match is_between {
            _ if !self.listed => Phase::List,
            true => Phase::Idle,
            false => Phase::Event,
        };
        let begun = Instant::now();
        let limit = reading.progress.timeout(phase, begun, self.bookmarks, &self.timeouts);
        // A watch without changes receives nothing: after a failure it counts as recovered once it has been open for a
        // while.
        let has_failed = self.failures + u64::from(self.backoff.attempts()) > 0;
        let recovered = reading.progress.opened() + self.timeouts.recovery;
        let frame = tokio::select! {
            biased;
            Ok(()) = reading.cuts.changed() => {
                return Err(RequestError::new(ErrorKind::Cut, format!("the connection to {} was closed", reading.lease.url)));
            }
            frame = timeout(limit, reading.body.frame()) => frame,
            () = sleep_until(recovered), if phase == Phase::Idle && has_failed => {
                return Ok(self.progress().then_some(WatchEvent::Progress));
            }
        };
        let end = match frame {
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    reading.progress.on_data(phase, data.len(), begun.elapsed());
                    reading.pieces.push(&data);
                    self.link.received();
                    self.state.received();
                    self.received_at = Instant::now();
                }
                return Ok(None);
            }
            Ok(Some(Err(error))) => {
                let (url, about) = (&reading.lease.url, &self.target.name);
                let text = format!("the answer of {url} about {about} broke off: {}", root_of(&error));
                return Err(RequestError::new(ErrorKind::Cut, text));
            }
            Ok(None) => reading.progress.on_end(phase, is_between, Instant::now()),
            Err(_) => reading.progress.on_timeout(phase),
        };
        self.end(end, limit).map(|()| None)
    }

    /// Closes the response after its end or a timeout. Returns an error unless it ended regularly.
    fn end(&mut self, end: End, limit: Duration) -> Result<(), RequestError> {
        let Some(reading) = &self.reading else { return Ok(()) };
        let (url, about) = (&reading.lease.url, &self.target.name);
        let (kind, text) = match end {
            End::Regular => {
                self.reading = None;
                self.received_at = Instant::now();
                self.state.restart();
                return Ok(());
            }
            End::NotStreamed => {
                self.link.does_not_stream(&reading.lease);
                self.reading = None;
                return Ok(());
            }
            End::Truncated => {
                (ErrorKind::Cut, format!("the answer of {url} about {about} broke off in the middle"))
            }
            End::Immediate => {
                (ErrorKind::Cut, format!("{url} ends the watch of {about} at once; is it an API server?"))
            }
            End::Slow { bytes } => {
                let silence = self.timeouts.list_silence.as_secs();
                let text = format!(
                    "{url} is too slow: {bytes} bytes about {about} within {silence} s, and no whole object; is the \
                     network that slow, or a proxy on the way?"
                );
                (ErrorKind::Slow, text)
            }
            End::Silent => (
                ErrorKind::Stalled,
                format!("{url} has sent nothing about {about} for {} s", limit.as_secs()),
            ),
        };
        Err(RequestError::new(kind, text))
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.health.close();
    }
}
