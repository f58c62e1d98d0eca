//! The election in virtual time: single steps, and random histories with one server.

use std::time::Duration;

use k8s_types::ApiError;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::election::{Election, Next, Timing};

const TIMING: Timing = Timing {
    lease: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry: Duration::from_secs(2),
};

const SECOND: Duration = Duration::from_secs(1);

fn election(identity: &str, now: Instant) -> Election {
    Election::new(identity.to_owned(), TIMING, now)
}

fn lease(holder: &str, seconds: u64, renewed: &str) -> Value {
    let spec = json!({
        "holderIdentity": holder, "leaseDurationSeconds": seconds, "acquireTime": "t0", "renewTime": renewed,
        "leaseTransitions": 3, "strategy": "OldestEmulationVersion",
    });
    json!({"metadata": {"resourceVersion": "7", "labels": {"team": "infra"}}, "spec": spec})
}

fn away() -> ApiError {
    ApiError::Unavailable { message: "connection refused".to_owned(), retry_after: None }
}

#[test]
fn a_missing_lease_is_created_and_renewed() {
    let start = Instant::now();
    let mut one = election("one", start);
    assert_eq!(one.next(start, "t1"), Next::Read);
    one.read(start, Ok(None), 0.0);
    let Next::Create(created) = one.next(start, "t1") else { panic!() };
    let spec = json!({
        "holderIdentity": "one", "leaseDurationSeconds": 15, "acquireTime": "t1", "renewTime": "t1",
        "leaseTransitions": 0,
    });
    assert_eq!(created["spec"], spec);
    assert_eq!(one.leads_until(), None);
    one.written(start, Ok(created), 0.0);
    assert_eq!(one.leads_until(), Some(start + 12 * SECOND));
    assert_eq!(one.next(start, "t2"), Next::Wait(start + 2 * SECOND));
    let Next::Update(renewed) = one.next(start + 2 * SECOND, "t2") else { panic!() };
    assert_eq!(
        (&renewed["spec"]["acquireTime"], &renewed["spec"]["renewTime"]),
        (&json!("t1"), &json!("t2"))
    );
    assert_eq!(renewed["spec"]["leaseTransitions"], 0);
    let released = one.release("t3").unwrap();
    assert_eq!(
        (&released["spec"]["holderIdentity"], &released["spec"]["leaseDurationSeconds"]),
        (&json!(""), &json!(1))
    );
}

#[test]
fn the_lease_of_another_is_left_alone_until_it_was_silent_for_its_duration() {
    let start = Instant::now();
    let mut two = election("two", start);
    let mut at = start;
    // Renewed for a minute, by a clock that is years ahead.
    for second in 0..30 {
        at = start + 2 * second * SECOND;
        assert_eq!(two.next(at, "t"), Next::Read);
        two.read(at, Ok(Some(lease("one", 15, &format!("2099-{second}")))), 0.0);
        assert!(matches!(two.next(at, "t"), Next::Wait(_)));
        assert_eq!(two.release("t"), None);
    }
    let last = lease("one", 15, "2099-29");
    for second in [3, 9, 14] {
        two.read(at + second * SECOND, Ok(Some(last.clone())), 0.0);
        assert!(matches!(two.next(at + second * SECOND, "t"), Next::Wait(_)), "{second}");
    }
    two.read(at + 15 * SECOND, Ok(Some(last)), 0.0);
    let Next::Update(taken) = two.next(at + 17 * SECOND, "t9") else { panic!() };
    assert_eq!(
        (&taken["spec"]["holderIdentity"], &taken["spec"]["leaseTransitions"]),
        (&json!("two"), &json!(4))
    );
    let rest = (&taken["metadata"]["labels"]["team"], &taken["spec"]["strategy"]);
    assert_eq!(rest, (&json!("infra"), &json!("OldestEmulationVersion")), "the rest of the object stays");
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let start = Instant::now();
    let mut two = election("two", start);
    two.read(start, Ok(Some(lease("", 1, "t0"))), 0.0);
    assert!(matches!(two.next(start, "t1"), Next::Update(_)));
}

#[test]
fn a_leader_without_answers_counts_itself_out_before_others_do() {
    let start = Instant::now();
    let mut one = election("one", start);
    one.read(start, Ok(None), 0.0);
    let Next::Create(created) = one.next(start, "t1") else { panic!() };
    one.written(start + SECOND, Ok(created), 0.0);
    let mut at = start + SECOND;
    loop {
        match one.next(at, "t2") {
            Next::Wait(until) => at = until,
            Next::Update(_) => one.written(at + SECOND, Err(away()), 1.0),
            Next::Read => one.read(at + SECOND, Err(away()), 1.0),
            Next::Lost { silence } => {
                assert_eq!(
                    silence,
                    12 * SECOND,
                    "since the last success was sent, not since it was answered"
                );
                break;
            }
            Next::Create(_) => panic!(),
        }
    }
    assert_eq!(one.error, "connection refused");
}

#[test]
fn a_leader_whose_lease_another_has_taken_is_out_at_once() {
    let start = Instant::now();
    let mut one = election("one", start);
    one.read(start, Ok(None), 0.0);
    let Next::Create(created) = one.next(start, "t1") else { panic!() };
    one.written(start, Ok(created), 0.0);
    let at = start + 2 * SECOND;
    assert!(matches!(one.next(at, "t2"), Next::Update(_)));
    one.written(at, Err(ApiError::Conflict("modified".to_owned())), 0.0);
    assert_eq!(one.next(at, "t2"), Next::Read, "a conflict is looked into at once");
    one.read(at, Ok(Some(lease("two", 15, "t2"))), 0.0);
    assert_eq!(one.leads_until(), None);
    assert!(matches!(one.next(at, "t2"), Next::Lost { .. }));
}

/// A request on its way.
#[derive(Clone, Debug)]
struct Flight {
    request: Next,
    applied_at: u64,
    answered_at: u64,
    answer: Option<Result<Option<Value>, ApiError>>,
    is_lost: bool,
    is_answer_lost: bool,
}

/// A step of a random history: latency of the way there and back, faults, a pause of the process.
#[derive(Clone, Debug)]
struct Chance {
    there: u64,
    back: u64,
    fault: u8,
    pause: u64,
    jitter: f64,
}

fn chance() -> impl Strategy<Value = Chance> {
    let pause = prop_oneof![9 => Just(0u64), 1 => 0..40_000u64];
    (0..2500u64, 0..2500u64, 0..12u8, pause, 0.0..1.0)
        .prop_map(|(there, back, fault, pause, jitter)| Chance { there, back, fault, pause, jitter })
}

/// One lease with versions, as an API server has it.
#[derive(Default)]
struct Server {
    lease: Option<Value>,
    version: u64,
}

impl Server {
    fn apply(&mut self, request: &Next) -> Result<Option<Value>, ApiError> {
        let version = |lease: &Value| lease["metadata"]["resourceVersion"].clone();
        let object = match (request, &self.lease) {
            (Next::Read, lease) => return Ok(lease.clone()),
            (Next::Create(_), Some(_)) => return Err(ApiError::AlreadyExists("exists".to_owned())),
            (Next::Create(object), None) => object,
            (Next::Update(object), Some(lease)) if version(object) == version(lease) => object,
            _ => return Err(ApiError::Conflict("modified".to_owned())),
        };
        self.version += 1;
        let mut object = object.clone();
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.lease = Some(object.clone());
        Ok(Some(object))
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever is lost, late or suspended: no two processes trust their lease at one time, and one leads in the end.
    #[test]
    fn never_two_leaders_and_one_in_the_end(chances in prop::collection::vec(chance(), 60..200)) {
        let start = Instant::now();
        let at = |millis: u64| start + Duration::from_millis(millis);
        let calm = Chance { there: 5, back: 5, fault: 99, pause: 0, jitter: 0.5 };
        let chances = chances.into_iter().chain(std::iter::repeat_n(calm.clone(), 400));
        let mut server = Server::default();
        let mut clock: u64 = 0;
        let mut processes: Vec<(Option<Election>, u64, Option<Flight>)> =
            (0..3).map(|i| (Some(election(&format!("p{i}"), start)), 0, None)).collect();
        let mut renewals = 0;
        for chance in chances {
            // The next thing that happens anywhere.
            let due = |(_, wake, flight): &(Option<Election>, u64, Option<Flight>)| match flight {
                Some(flight) if flight.answer.is_none() => flight.applied_at,
                Some(flight) => flight.answered_at.max(*wake),
                None => *wake,
            };
            let Some((i, when)) = processes.iter().enumerate().map(|(i, p)| (i, due(p))).min_by_key(|(_, when)| *when)
            else { break };
            clock = clock.max(when);
            renewals += 1;
            let (process, wake, flight) = &mut processes[i];
            match flight {
                Some(under_way) if under_way.answer.is_none() => {
                    let answer = match under_way.is_lost {
                        true => Err(away()),
                        false => server.apply(&under_way.request),
                    };
                    under_way.answer = Some(if under_way.is_answer_lost { Err(away()) } else { answer });
                    continue;
                }
                Some(under_way) => {
                    let answer = under_way.answer.take().unwrap();
                    let election = process.as_mut().unwrap();
                    match under_way.request {
                        Next::Read => election.read(at(clock), answer, chance.jitter),
                        _ => election.written(at(clock), answer.map(|lease| lease.unwrap()), chance.jitter),
                    }
                    *flight = None;
                }
                None => {}
            }
            let now = clock + chance.pause;
            let election = process.get_or_insert_with(|| election(&format!("p{i}-{clock}"), at(now)));
            match election.next(at(now), &format!("t{renewals}-{i}")) {
                Next::Wait(until) => *wake = u64::try_from((until - start).as_millis()).unwrap().max(now) + 1,
                // The process ends, and its successor begins a little later.
                Next::Lost { .. } => {
                    *process = None;
                    *wake = now + 1000;
                }
                request => {
                    *wake = now;
                    *flight = Some(Flight {
                        request,
                        applied_at: now + chance.there,
                        answered_at: now + chance.there + chance.back,
                        answer: None,
                        is_lost: chance.fault == 0,
                        is_answer_lost: chance.fault == 1,
                    });
                }
            }
            let leaders: Vec<usize> = (0..processes.len())
                .filter(|i| processes[*i].0.as_ref().and_then(Election::leads_until).is_some_and(|until| at(clock) < until))
                .collect();
            prop_assert!(leaders.len() <= 1, "{leaders:?} lead at {clock} ms");
        }
        let leads = processes.iter().any(|(process, ..)| process.as_ref().and_then(Election::leads_until).is_some());
        prop_assert!(leads, "nobody leads after a calm time: {processes:?}");
    }
}
