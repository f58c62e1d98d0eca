//! Agents, operators and an API server in any order of events.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::life_signs::*;
use k8s_types::SmolStr;
use std::time::Duration;
use tokio::time::Instant;

/// How often agents check the identities that they hold, and how old their view may be, in minutes.
const SYNC: u64 = 5;

const AGENTS: usize = 2;

#[derive(Clone, Debug, PartialEq)]
struct Object {
    uid: u64,
    version: u64,
    is_marked: bool,
}

type Objects = BTreeMap<u8, Object>;

#[derive(Clone, Debug, Default)]
struct Server {
    objects: Objects,
    /// Endpoints by agent and identity.
    endpoints: BTreeSet<(usize, u8)>,
    version: u64,
}

impl Server {
    fn create(&mut self, id: u8, uid: u64) {
        self.version += 1;
        self.objects.insert(id, Object { uid, version: self.version, is_marked: false });
    }

    /// Replaces the mark at a version. Returns whether the object had that version.
    fn mark(&mut self, id: u8, version: u64, is_marked: bool) -> bool {
        let Some(object) = self.objects.get_mut(&id).filter(|object| object.version == version) else {
            return false;
        };
        self.version += 1;
        (object.version, object.is_marked) = (self.version, is_marked);
        true
    }
}

#[derive(Clone, Debug)]
enum Event {
    Advance(u64),
    Take(usize, u8),
    Publish(usize, u8),
    Release(usize, u8),
    /// The operator's watch delivers what has changed.
    Watch,
    Run,
    RestartOperator,
    SaveServer,
    /// The server is replaced by the saved state.
    RestoreServer,
}

struct World {
    now: Instant,
    minutes: u64,
    uids: u64,
    server: Server,
    saved: Server,
    held: [BTreeSet<u8>; AGENTS],
    views: [Objects; AGENTS],
    /// The view of the operator: objects and used identities.
    known: (Objects, BTreeSet<u8>),
    signs: LifeSigns,
    timeout: Duration,
    deleted: usize,
    /// Identities that were deleted while an agent held them.
    wrong: Vec<u8>,
}

impl World {
    fn new(timeout_minutes: u64) -> World {
        let now = Instant::now();
        let timeout = Duration::from_secs(timeout_minutes * 60);
        World {
            now,
            minutes: 0,
            uids: 0,
            server: Server::default(),
            saved: Server::default(),
            held: Default::default(),
            views: Default::default(),
            known: Default::default(),
            signs: LifeSigns::new(timeout, now),
            timeout,
            deleted: 0,
            wrong: Vec::new(),
        }
    }

    fn create(&mut self, id: u8) {
        self.uids += 1;
        self.server.create(id, self.uids);
    }

    fn step(&mut self, event: &Event) {
        match *event {
            Event::Advance(minutes) => {
                for _ in 0..minutes {
                    self.minutes += 1;
                    self.now += Duration::from_secs(60);
                    if self.minutes.is_multiple_of(SYNC) {
                        (0..AGENTS).for_each(|agent| self.sync(agent));
                    }
                }
            }
            Event::Take(agent, id) => self.take(agent, id),
            Event::Publish(agent, id) if self.held[agent].contains(&id) => {
                self.server.endpoints.insert((agent, id));
            }
            Event::Publish(..) => {}
            Event::Release(agent, id) => {
                self.held[agent].remove(&id);
                self.server.endpoints.remove(&(agent, id));
            }
            Event::Watch => self.watch(),
            Event::Run => self.run(),
            Event::RestartOperator => {
                self.signs = LifeSigns::new(self.timeout, self.now);
                self.known = Default::default();
                self.watch();
            }
            Event::SaveServer => self.saved = self.server.clone(),
            Event::RestoreServer => {
                // The operator has seen the state that is lost: an older version of an object is news to it. If it were
                // behind, the older version could be the one that it knows, and no sign of life.
                self.watch();
                self.server = self.saved.clone();
                // All watches break with the server that they were at.
                self.views = std::array::from_fn(|_| self.server.objects.clone());
                self.watch();
            }
        }
    }

    /// An agent gets an identity for a new pod, by its last view.
    fn take(&mut self, agent: usize, id: u8) {
        match self.views[agent].get(&id).cloned() {
            Some(seen) if !seen.is_marked => {}
            Some(seen) if self.server.mark(id, seen.version, false) => {}
            _ => {
                self.views[agent] = self.server.objects.clone();
                match self.server.objects.get(&id).cloned() {
                    Some(found) => drop(self.server.mark(id, found.version, false)),
                    None => self.create(id),
                }
            }
        }
        self.held[agent].insert(id);
        // It was deleted before the agent could know: made again.
        if !self.server.objects.contains_key(&id) {
            self.create(id);
        }
    }

    /// An agent checks its identities: none may be marked or missing.
    fn sync(&mut self, agent: usize) {
        for id in self.held[agent].clone() {
            match self.server.objects.get(&id).cloned() {
                Some(found) if found.is_marked => drop(self.server.mark(id, found.version, false)),
                Some(_) => {}
                None => self.create(id),
            }
        }
        self.views[agent] = self.server.objects.clone();
    }

    fn watch(&mut self) {
        let (known, _) = &self.known;
        for id in known.keys().filter(|id| !self.server.objects.contains_key(id)) {
            self.signs.gone(&name(*id));
        }
        for (id, object) in &self.server.objects {
            if known.get(id) != Some(object) {
                self.signs.alive(&name(*id), self.now);
            }
        }
        let used = self.server.endpoints.iter().map(|(_, id)| *id).collect();
        self.known = (self.server.objects.clone(), used);
    }

    fn run(&mut self) {
        let (objects, used) = self.known.clone();
        for (id, seen) in objects {
            match self.signs.action(&name(id), seen.is_marked, used.contains(&id), self.now) {
                Action::Keep => {}
                Action::Mark => drop(self.server.mark(id, seen.version, true)),
                Action::Delete => {
                    if self.server.objects.get(&id) == Some(&seen) {
                        self.server.objects.remove(&id);
                        self.deleted += 1;
                        if self.held.iter().any(|held| held.contains(&id)) {
                            self.wrong.push(id);
                        }
                    }
                }
            }
        }
    }
}

fn name(id: u8) -> SmolStr {
    id.to_string().into()
}

fn event() -> impl Strategy<Value = Event> {
    let (agent, id) = (0..AGENTS, 0..4_u8);
    prop_oneof![
        6 => (1..20_u64).prop_map(Event::Advance),
        4 => (agent.clone(), id.clone()).prop_map(|(agent, id)| Event::Take(agent, id)),
        2 => (agent.clone(), id.clone()).prop_map(|(agent, id)| Event::Publish(agent, id)),
        4 => (agent, id).prop_map(|(agent, id)| Event::Release(agent, id)),
        6 => Just(Event::Watch),
        6 => Just(Event::Run),
        1 => Just(Event::RestartOperator),
        1 => Just(Event::SaveServer),
        1 => Just(Event::RestoreServer),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_identity_that_an_agent_holds_is_never_deleted(events in proptest::collection::vec(event(), 1..200)) {
        let mut world = World::new(30);
        for event in &events {
            world.step(event);
            prop_assert_eq!(&world.wrong, &Vec::<u8>::new(), "after {:?}", event);
        }
        // Once all are released they go, whatever has happened before.
        for agent in 0..AGENTS {
            (0..4).for_each(|id| world.step(&Event::Release(agent, id)));
        }
        world.server.endpoints.clear();
        for _ in 0..8 {
            [Event::Watch, Event::Run, Event::Advance(15)].iter().for_each(|event| world.step(event));
        }
        prop_assert!(world.server.objects.is_empty(), "{:?}", world.server.objects);
    }
}

#[test]
fn an_unused_identity_is_marked_and_then_deleted() {
    let mut world = World::new(30);
    world.create(1);
    world.step(&Event::Watch);
    for (minutes, marked, count) in [(29, false, 1), (1, true, 1), (29, true, 1), (1, true, 0)] {
        [Event::Advance(minutes), Event::Run, Event::Watch].iter().for_each(|event| world.step(event));
        assert_eq!(world.server.objects.len(), count);
        assert!(world.server.objects.values().all(|object| object.is_marked == marked));
    }
}

/// The control: with a timeout that is shorter than the interval of agents the same events delete an identity in use.
#[test]
fn the_model_finds_a_timeout_that_is_too_short() {
    let wrong = |timeout| {
        let mut world = World::new(timeout);
        let take = [Event::Take(0, 1), Event::Watch, Event::Advance(6)];
        let rounds = [Event::Run, Event::Watch, Event::Advance(2), Event::Run, Event::Watch];
        take.iter().chain(&rounds).for_each(|event| world.step(event));
        world.wrong
    };
    assert_eq!((wrong(2), wrong(30)), (vec![1], vec![]));
}
