use super::*;

fn target(name: &str) -> Target {
    Target::new(Kind::CiliumEndpoint, Key::new("shop", name))
}

const UNREACHABLE: Option<Class> = Some(Class::Unavailable(None));

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

struct Queue {
    schedule: Schedule,
    now: Instant,
    numbers: u64,
}

impl Queue {
    fn new() -> Queue {
        Queue { schedule: Schedule::default(), now: Instant::now(), numbers: 0 }
    }

    fn put(&mut self, target: &Target) {
        self.numbers += 1;
        self.schedule.put(self.now, target, self.numbers, None);
    }

    fn next(&mut self) -> Option<Turn> {
        self.schedule.next(self.now)
    }

    fn end(&mut self, turn: &Turn, failure: Option<Class>) -> Verdict {
        self.schedule.finished(self.now, turn, failure, false)
    }

    /// Advances the clock to the next attempt; returns the time passed.
    fn wait(&mut self) -> Duration {
        let at = self.schedule.wake_at().unwrap();
        let wait = at.saturating_duration_since(self.now);
        self.now = self.now.max(at);
        wait
    }
}

#[test]
fn the_oldest_goes_first_and_eight_at_a_time() {
    let mut queue = Queue::new();
    for i in 0..20 {
        queue.put(&target(&i.to_string()));
    }
    let turns: Vec<Turn> = std::iter::from_fn(|| queue.next()).collect();
    let names: Vec<&str> = turns.iter().map(|turn| turn.target.key.name.as_str()).collect();
    assert_eq!(names, ["0", "1", "2", "3", "4", "5", "6", "7"]);
    assert_eq!(queue.schedule.wake_at(), None, "nothing to wait for but those under way");
    assert_eq!(queue.end(&turns[3], None), Verdict::Over);
    assert_eq!(queue.next().unwrap().target, target("8"));
}

#[test]
fn an_object_is_written_by_one_at_a_time() {
    let mut queue = Queue::new();
    let (whole, labels) = (target("a"), target("a").part("labels"));
    queue.put(&whole);
    queue.put(&labels);
    let first = queue.next().unwrap();
    assert_eq!(queue.next(), None);
    assert_eq!(queue.schedule.wake_at(), None);
    queue.put(&whole);
    assert_eq!(queue.end(&first, Some(Class::Stale)), Verdict::Replaced);
    let second = queue.next().unwrap();
    assert_eq!(second.target, labels);
    assert_eq!(queue.end(&second, None), Verdict::Over);
    let third = queue.next().unwrap();
    assert_eq!((third.target.clone(), third.number), (whole, 3));
    assert_eq!(queue.end(&third, None), Verdict::Over);
    assert_eq!(queue.schedule.wake_at(), None);
}

#[test]
fn backoffs_depend_on_the_class_of_the_failure() {
    let waits = |class: Class, times: usize| {
        let mut queue = Queue::new();
        queue.put(&target("a"));
        let mut waits = Vec::new();
        for _ in 0..times {
            let turn = queue.next().unwrap();
            assert_eq!(queue.end(&turn, Some(class)), Verdict::Again);
            waits.push(queue.wait());
        }
        waits
    };
    for (class, (min, max)) in [
        (Class::Stale, STALE_BACKOFF),
        (Class::Unavailable(None), UNAVAILABLE_BACKOFF),
        (Class::Refused, REFUSED_BACKOFF),
    ] {
        let waits = waits(class, 12);
        assert!(waits[0] >= min.mul_f64(0.79) && waits[0] <= min.mul_f64(1.21), "{class:?}: {waits:?}");
        assert!(waits[2] > waits[0].mul_f64(2.5), "{class:?}: {waits:?}");
        assert!(waits[11] >= max.mul_f64(0.79) && waits[11] <= max.mul_f64(1.21), "{class:?}: {waits:?}");
    }
}

#[test]
fn an_object_that_fails_alone_blocks_no_other() {
    let mut queue = Queue::new();
    queue.put(&target("bad"));
    for i in 0..50 {
        let turn = queue.next().unwrap();
        assert_eq!(turn.target, target("bad"));
        queue.end(&turn, UNREACHABLE);
        assert!(!queue.schedule.is_closed());
        queue.put(&target(&i.to_string()));
        let good = queue.next().unwrap();
        assert_eq!(good.target, target(&i.to_string()), "goes at once");
        queue.end(&good, None);
        queue.wait();
    }
}

#[test]
fn an_unreachable_server_is_probed_with_one_object_at_a_time_in_turn() {
    let mut queue = Queue::new();
    for i in 0..100 {
        queue.put(&target(&i.to_string()));
    }
    let turns: Vec<Turn> = std::iter::from_fn(|| queue.next()).collect();
    for turn in &turns {
        assert_eq!(queue.end(turn, UNREACHABLE), Verdict::Again);
    }
    assert!(queue.schedule.is_closed());
    let begin = queue.now;
    let mut tried = std::collections::HashMap::<Target, usize>::new();
    while queue.now < begin + seconds(3600) {
        queue.wait();
        let probe = queue.next().unwrap();
        assert_eq!(queue.next(), None, "one at a time");
        assert_eq!(queue.schedule.wake_at(), None);
        *tried.entry(probe.target.clone()).or_default() += 1;
        queue.end(&probe, UNREACHABLE);
    }
    let requests: usize = tried.values().sum();
    assert!((300..500).contains(&requests), "{requests} requests in an hour");
    let (least, most) = (tried.values().min().unwrap(), tried.values().max().unwrap());
    assert!(tried.len() == 100 && most - least <= 2, "{least} to {most}");
    queue.wait();
    let probe = queue.next().unwrap();
    queue.end(&probe, None);
    let mut left = 99;
    while let Some(turn) = queue.next() {
        queue.end(&turn, None);
        left -= 1;
    }
    assert_eq!(left, 0, "all go at once");
}

#[test]
fn a_delayed_object_is_retried_when_the_server_responds_again() {
    let mut queue = Queue::new();
    queue.put(&target("a"));
    for _ in 0..10 {
        let turn = queue.next().unwrap();
        queue.end(&turn, UNREACHABLE);
        queue.wait();
    }
    let turn = queue.next().unwrap();
    queue.end(&turn, UNREACHABLE);
    assert!(queue.schedule.wake_at().unwrap() > queue.now + seconds(20));
    queue.put(&target("b"));
    let turn = queue.next().unwrap();
    queue.end(&turn, UNREACHABLE);
    assert!(queue.schedule.is_closed() && queue.wait() < seconds(1));
    let probe = queue.next().unwrap();
    assert_eq!(probe.target, target("b"), "the one that has failed less often");
    queue.end(&probe, None);
    assert_eq!(queue.next().unwrap().target, target("a"));
}

#[test]
fn retry_after_is_followed_within_bounds() {
    for (asked, least, most) in [(7, 7.0, 8.5), (86_400, 120.0, 145.0)] {
        let mut queue = Queue::new();
        queue.put(&target("a"));
        queue.put(&target("b"));
        let turn = queue.next().unwrap();
        let busy = ApiError::Unavailable { message: "too many requests".into(), retry_after: Some(asked) };
        queue.end(&turn, Some(Class::of(&busy)));
        assert_eq!(queue.next(), None, "for all objects");
        let wait = queue.wait().as_secs_f64();
        assert!((least..most).contains(&wait), "{wait}");
        assert!(queue.next().is_some());
    }
}

#[test]
fn only_answered_attempts_are_counted() {
    let mut queue = Queue::new();
    let limit = Limit { tries: 3, apart: Duration::from_millis(500) };
    queue.schedule.put(queue.now, &target("a"), 1, Some(limit));
    let mut verdicts = Vec::new();
    for class in
        [Class::Stale, Class::Unavailable(None), Class::Refused, Class::Unavailable(None), Class::Stale]
    {
        let turn = queue.next().unwrap();
        verdicts.push(queue.end(&turn, Some(class)));
        if verdicts.len() == 1 {
            assert_eq!(queue.wait(), Duration::from_millis(500));
        } else if verdicts.len() < 5 {
            queue.wait();
        }
    }
    assert_eq!(verdicts[..4], [Verdict::Again; 4]);
    assert_eq!(verdicts[4], Verdict::Exhausted);
    assert_eq!((queue.next(), queue.schedule.wake_at()), (None, None));
}

#[test]
fn a_withdrawn_probe_does_not_keep_the_queue_closed() {
    let mut queue = Queue::new();
    queue.put(&target("a"));
    queue.put(&target("b"));
    for turn in [queue.next().unwrap(), queue.next().unwrap()] {
        queue.end(&turn, UNREACHABLE);
    }
    queue.wait();
    let probe = queue.next().unwrap();
    queue.schedule.remove(&probe.target);
    queue.schedule.left_out(&probe);
    let other = queue.next().unwrap();
    assert_ne!(other.target, probe.target);
}

#[test]
fn a_terminating_namespace_is_not_a_refusal() {
    let forbidden = |text: &str| Class::of(&ApiError::Forbidden(text.into()));
    let going = "unable to create new content in namespace a because it is being terminated";
    assert_eq!((forbidden(going), forbidden("no")), (Class::Stale, Class::Refused));
}
