//! The cache against a naive model, with clients that are true to the protocol, and some that are not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use xds::{Cache, Delivery, Event, ProtocolError, Request, Response, StreamId, Value};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn value(text: u8) -> Value {
    Arc::from([text])
}

/// A client as Envoy is one: it keeps the last accepted version over streams, and its state is the last response.
#[derive(Default)]
struct Client {
    stream: Option<StreamId>,
    names: BTreeSet<Arc<str>>,
    version: String,
    nonce: String,
    unanswered: Option<Response>,
    state: Vec<Value>,
}

impl Client {
    fn request(&self, error: &str) -> Request {
        let (version, nonce) = (self.version.clone(), self.nonce.clone());
        Request { version, nonce, names: self.names.clone(), error: error.to_owned() }
    }

    fn connect(&mut self, cache: &mut Cache) {
        if let Some(old) = self.stream.take() {
            cache.close(old);
        }
        (self.nonce, self.unanswered) = (String::new(), None);
        let stream = cache.open();
        self.stream = Some(stream);
        assert!(matches!(cache.request(stream, self.request("")), Ok(Event::First(_))));
    }

    fn receive(&mut self, cache: &mut Cache) {
        let Some(stream) = self.stream else { return };
        if let Some(response) = cache.response(stream) {
            assert!(self.unanswered.is_none(), "one response at a time");
            let held: u64 = self.version.parse().unwrap_or(0);
            assert!(response.version > held, "versions never repeat: {} after {held}", response.version);
            self.unanswered = Some(response);
        }
    }

    fn answer(&mut self, cache: &mut Cache, accept: bool) {
        let (Some(stream), Some(response)) = (self.stream, self.unanswered.take()) else { return };
        self.nonce = response.version.to_string();
        if accept {
            self.version = self.nonce.clone();
            self.state = response.resources;
            assert_eq!(cache.request(stream, self.request("")), Ok(Event::Ack(response.version)));
        } else {
            let event = cache.request(stream, self.request("refused")).unwrap();
            assert_eq!(event, Event::Nack { version: response.version, error: "refused".to_owned() });
        }
    }

    fn subscribe(&mut self, cache: &mut Cache, names: BTreeSet<Arc<str>>) {
        self.names = names;
        if let Some(stream) = self.stream {
            cache.request(stream, self.request("")).unwrap();
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Set(usize, u8),
    Delete(usize),
    Connect(usize),
    Receive(usize),
    Answer(usize, bool),
    Subscribe(usize, BTreeSet<usize>),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..NAMES.len(), 0u8..3).prop_map(|(name, value)| Step::Set(name, value)),
        (0..NAMES.len()).prop_map(Step::Delete),
        (0..2usize).prop_map(Step::Connect),
        (0..2usize).prop_map(Step::Receive),
        (0..2usize).prop_map(Step::Receive),
        (0..2usize, any::<bool>()).prop_map(|(client, accept)| Step::Answer(client, accept)),
        (0..2usize, prop::collection::btree_set(0..NAMES.len(), 0..3))
            .prop_map(|(client, names)| Step::Subscribe(client, names)),
        Just(Step::Restart),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    /// After any order of events a client that reads and accepts holds exactly what it subscribes to, and nothing is
    /// due any more.
    #[test]
    fn clients_converge_to_their_subscription(steps in steps()) {
        let mut cache = Cache::new();
        let mut model: BTreeMap<Arc<str>, Value> = BTreeMap::new();
        let mut clients = [Client::default(), Client::default()];
        for step in steps {
            match step {
                Step::Set(name, text) => {
                    let name: Arc<str> = NAMES[name].into();
                    let differs = model.insert(name.clone(), value(text)) != Some(value(text));
                    prop_assert_eq!(cache.update([(name, Some(value(text)))]).is_some(), differs);
                }
                Step::Delete(name) => {
                    let differs = model.remove(NAMES[name]).is_some();
                    prop_assert_eq!(cache.update([(NAMES[name].into(), None)]).is_some(), differs);
                }
                Step::Connect(client) => clients[client].connect(&mut cache),
                Step::Receive(client) => clients[client].receive(&mut cache),
                Step::Answer(client, accept) => clients[client].answer(&mut cache, accept),
                Step::Subscribe(client, names) => {
                    let names = names.into_iter().map(|name| NAMES[name].into()).collect();
                    clients[client].subscribe(&mut cache, names);
                }
                Step::Restart => {
                    // The server forgets versions and streams; what it serves is computed again.
                    cache = Cache::new();
                    cache.replace(model.clone());
                    clients.iter_mut().for_each(|client| client.stream = None);
                }
            }
        }
        // Everything changes once more: a client that refused a version waits for the next one.
        let all = NAMES.into_iter().chain(["last"]).map(|name| (Arc::from(name), value(9)));
        model.extend(all.clone());
        let last = cache.update(all.map(|(name, value)| (name, Some(value)))).unwrap();
        for client in &mut clients {
            if client.stream.is_none() {
                client.connect(&mut cache);
            }
            client.answer(&mut cache, true);
            for _ in 0..3 {
                client.receive(&mut cache);
                client.answer(&mut cache, true);
            }
            let all = client.names.is_empty();
            let wanted = model.iter().filter(|(name, _)| all || client.names.contains(*name));
            let wanted: Vec<Value> = wanted.map(|(_, value)| value.clone()).collect();
            prop_assert_eq!(&client.state, &wanted);
            prop_assert_eq!(cache.response(client.stream.unwrap()), None);
        }
        let subscribed = clients.iter().any(|client| client.names.is_empty());
        let expected = if subscribed { Delivery::Done } else { Delivery::NoClient };
        prop_assert_eq!(cache.delivery("last", last), expected);
    }
}

fn connected(cache: &mut Cache) -> Client {
    let mut client = Client::default();
    client.connect(cache);
    client
}

#[test]
fn versions_continue_after_those_of_an_earlier_process() {
    let mut cache = Cache::new();
    cache.update([("a".into(), Some(value(1)))]);
    let mut client = Client { version: "57".to_owned(), ..Client::default() };
    client.connect(&mut cache);
    client.receive(&mut cache);
    assert_eq!(client.unanswered.as_ref().unwrap().version, 58);
    client.answer(&mut cache, true);
    assert_eq!(cache.update([("b".into(), Some(value(1)))]), Some(59));
}

#[test]
fn a_refused_version_is_not_repeated_and_the_next_one_heals() {
    let mut cache = Cache::new();
    let version = cache.update([("a".into(), Some(value(1)))]).unwrap();
    assert_eq!(cache.delivery("a", version), Delivery::NoClient);
    let mut client = connected(&mut cache);
    assert_eq!(cache.delivery("a", version), Delivery::Pending);
    client.receive(&mut cache);
    client.answer(&mut cache, false);
    assert_eq!(cache.delivery("a", version), Delivery::Refused("refused".to_owned()));
    client.receive(&mut cache);
    assert_eq!(client.unanswered, None);
    let fixed = cache.update([("a".into(), Some(value(2)))]).unwrap();
    assert_eq!(cache.delivery("a", fixed), Delivery::Pending, "the refusal was of an earlier version");
    client.receive(&mut cache);
    client.answer(&mut cache, true);
    assert_eq!((cache.delivery("a", version), cache.delivery("a", fixed)), (Delivery::Done, Delivery::Done));
}

#[test]
fn names_are_answered_when_they_exist() {
    let mut cache = Cache::new();
    let mut client = Client { names: BTreeSet::from(["a".into(), "b".into()]), ..Client::default() };
    client.connect(&mut cache);
    assert_eq!(cache.response(client.stream.unwrap()), None, "none of them exists");
    let version = cache.update([("c".into(), Some(value(1)))]).unwrap();
    assert_eq!(
        (cache.response(client.stream.unwrap()), cache.delivery("c", version)),
        (None, Delivery::NoClient)
    );
    cache.update([("b".into(), Some(value(2)))]);
    client.receive(&mut cache);
    client.answer(&mut cache, true);
    assert_eq!(client.state, [value(2)]);
    cache.update([("c".into(), Some(value(3)))]);
    assert_eq!(cache.response(client.stream.unwrap()), None, "not subscribed");
}

#[test]
fn answers_of_observers_do_not_count() {
    let mut cache = Cache::new();
    let version = cache.update([("a".into(), Some(value(1)))]).unwrap();
    let mut observer = connected(&mut cache);
    cache.observe(observer.stream.unwrap());
    observer.receive(&mut cache);
    observer.answer(&mut cache, true);
    assert_eq!(observer.state, [value(1)]);
    assert!(!cache.was_acked() && !cache.has_clients());
    assert_eq!(cache.delivery("a", version), Delivery::NoClient);
    assert!(connected(&mut cache).stream.is_some() && cache.has_clients());
}

#[test]
fn held_resources_are_not_sent() {
    let mut cache = Cache::new();
    assert!(cache.hold(true) && !cache.hold(true));
    let mut client = connected(&mut cache);
    client.receive(&mut cache);
    assert_eq!(client.unanswered, None);
    assert!(cache.hold(false));
    client.receive(&mut cache);
    client.answer(&mut cache, true);
    assert!(cache.was_acked() && client.state.is_empty(), "an answer without resources");
}

#[test]
fn requests_that_break_the_protocol_end_their_stream_only() {
    let mut cache = Cache::new();
    let mut good = connected(&mut cache);
    let bad = |version: &str, nonce: &str| Request {
        version: version.to_owned(),
        nonce: nonce.to_owned(),
        ..Request::default()
    };
    let stream = cache.open();
    cache.request(stream, Request::default()).unwrap();
    for nonce in ["1", "x", "18446744073709551616"] {
        let error = cache.request(stream, bad("", nonce)).unwrap_err();
        assert_eq!(error, ProtocolError::UnknownNonce { nonce: nonce.to_owned() });
    }
    let sent = cache.response(stream).unwrap().version.to_string();
    for version in ["99", "x"] {
        let error = cache.request(stream, bad(version, &sent)).unwrap_err();
        assert!(matches!(error, ProtocolError::BadVersion { .. }), "{error}");
    }
    let huge = cache.open();
    let error = cache.request(huge, bad(&u64::MAX.to_string(), "")).unwrap_err();
    assert!(matches!(error, ProtocolError::BadVersion { .. }), "{error}");
    cache.close(huge);
    assert_eq!(cache.request(huge, Request::default()), Err(ProtocolError::Ended));
    good.receive(&mut cache);
    good.answer(&mut cache, true);
}
