use futures::future::join_all;
use tokio::time::sleep;

use super::parameters::Parameters;
use super::*;

fn parse(config: &str) -> Result<BTreeMap<Kind, Parameters>, String> {
    parse_config(config).map_err(|error| error.to_string())
}

#[test]
fn every_option_of_api_rate_limit_is_read() {
    let limits = parse(
        "endpoint-create=rate-limit:10/s,rate-burst:2,parallel-requests:3,min-parallel-requests:2,\
         max-parallel-requests:8,max-wait-duration:10s,min-wait-duration:5ms,estimated-processing-duration:1s,\
         auto-adjust:false,mean-over:7,skip-initial:1,log:true,delayed-adjustment-factor:0.25,\
         max-adjustment-factor:20,endpoint-list=rate-limit:30/1m",
    )
    .unwrap();
    let create = &limits[&Kind::Create];
    let expected = Parameters {
        rate_limit: 10.0,
        rate_burst: 2,
        parallel_requests: 3,
        min_parallel_requests: 2,
        max_parallel_requests: 8,
        min_wait_duration: Duration::from_millis(5),
        max_wait_duration: Duration::from_secs(10),
        estimated_processing_duration: Duration::from_secs(1),
        auto_adjust: false,
        mean_over: 7,
        skip_initial: 1,
        delayed_adjustment_factor: 0.25,
        max_adjustment_factor: 20.0,
        log: true,
    };
    assert_eq!(*create, expected);
    let list = &limits[&Kind::List];
    assert_eq!(*list, Parameters { rate_limit: 0.5, ..Parameters::of(Kind::List) });
    assert_eq!(limits.len(), 2);
    assert_eq!(parse("").unwrap().len(), 0);
    let json = parse(r#"{"endpoint-get":"rate-limit:1/s"}"#).unwrap();
    assert_eq!(json[&Kind::Get].rate_limit, 1.0);
    assert_eq!(parse("someone-elses=rate-limit:1/s").unwrap().len(), 0);
}

#[test]
fn invalid_options_are_named() {
    for (config, text) in [
        (
            "rate-limit:1/s",
            "unable to parse rate limit option \"rate-limit:1/s\", must be in the form name=option:value[,option:value]",
        ),
        (
            "endpoint-get=fast",
            "unable to parse rate limit option \"fast\", must be in the form name=option:value[,option:value]",
        ),
        (
            "endpoint-get=speed:1",
            "unable to parse rate limit option \"speed\" with value \"1\": unknown rate limiting option \"speed\"",
        ),
        (
            "endpoint-get=rate-limit:10",
            "unable to parse rate limit option \"rate-limit\" with value \"10\": unable to parse rate \"10\": not in the form number/interval",
        ),
        (
            "endpoint-get=rate-limit:1/1",
            "unable to parse rate limit option \"rate-limit\" with value \"1/1\": unable to parse rate \"1/1\": interval \"1\" must contain duration suffix",
        ),
        (
            "endpoint-get=rate-limit:1/x",
            "unable to parse rate limit option \"rate-limit\" with value \"1/x\": unable to parse rate \"1/x\": unable to parse duration \"1x\"",
        ),
        (
            "endpoint-get=rate-limit:-1/s",
            "unable to parse rate limit option \"rate-limit\" with value \"-1/s\": unable to parse rate \"-1/s\": the rate must be a number of requests that is not negative",
        ),
        (
            "endpoint-get=rate-burst:-1",
            "unable to parse rate limit option \"rate-burst\" with value \"-1\": unable to parse integer \"-1\"",
        ),
        (
            "endpoint-get=auto-adjust:yes",
            "unable to parse rate limit option \"auto-adjust\" with value \"yes\": unable to parse bool \"yes\"",
        ),
        (
            "other=speed:1",
            "unable to parse rate limit option \"speed\" with value \"1\": unknown rate limiting option \"speed\"",
        ),
    ] {
        assert_eq!(parse(config).unwrap_err(), format!("api-rate-limit: {text}"));
    }
}

/// Sends `count` requests at once; returns the second in which each is admitted, `None` for rejected ones.
async fn admitted(limits: &Limits, kind: Kind, count: usize, takes: Duration) -> Vec<Option<u64>> {
    let begin = Instant::now();
    let mut seconds = join_all((0..count).map(|_| async {
        let permit = limits.admit(kind).await.ok()?;
        let at = begin.elapsed().as_secs();
        sleep(takes).await;
        permit.finish();
        Some(at)
    }))
    .await;
    seconds.sort_by_key(|at| at.unwrap_or(u64::MAX));
    seconds
}

#[tokio::test(start_paused = true)]
async fn the_default_waits_for_slots_only() {
    let limits = Limits::new("").unwrap();
    let takes = Duration::from_secs(1);
    let at = admitted(&limits, Kind::Create, 2 * admission::AT_ONCE + 1, takes).await;
    assert_eq!(at[admission::AT_ONCE - 1], Some(0));
    assert_eq!(at[admission::AT_ONCE], Some(1));
    assert_eq!(at[2 * admission::AT_ONCE], Some(2));
}

#[tokio::test(start_paused = true)]
async fn the_default_turns_away_by_queue_depth_and_deadline() {
    let limits = Limits::new("").unwrap();
    let all = admission::AT_ONCE + admission::WAITING + 3;
    let at = admitted(&limits, Kind::Delete, all, Duration::from_millis(1)).await;
    assert_eq!(at.iter().filter(|at| at.is_none()).count(), 3);

    let at = admitted(&limits, Kind::Get, admission::AT_ONCE + 1, Duration::from_secs(11)).await;
    assert_eq!(at.last(), Some(&None), "the last waits 10 s, not 11");
}

#[tokio::test(start_paused = true)]
async fn a_rate_with_a_burst_spreads_requests() {
    let limits =
        Limits::new("endpoint-create=rate-limit:1/s,rate-burst:2,skip-initial:0,auto-adjust:false").unwrap();
    let at = admitted(&limits, Kind::Create, 6, Duration::ZERO).await;
    assert_eq!(at, [0, 0, 1, 2, 3, 4].map(Some));
    // Tokens come back with time, no more than the burst.
    sleep(Duration::from_secs(100)).await;
    let at = admitted(&limits, Kind::Create, 3, Duration::ZERO).await;
    assert_eq!(at, [0, 0, 1].map(Some));
}

#[tokio::test(start_paused = true)]
async fn the_first_requests_are_not_limited() {
    let limits =
        Limits::new("endpoint-create=rate-limit:1/s,rate-burst:1,skip-initial:3,auto-adjust:false").unwrap();
    let at = admitted(&limits, Kind::Create, 6, Duration::ZERO).await;
    assert_eq!(at, [0, 0, 0, 0, 1, 2].map(Some));
}

#[tokio::test(start_paused = true)]
async fn who_would_wait_too_long_is_turned_away_and_takes_no_token() {
    let limits = Limits::new(
        "endpoint-create=rate-limit:1/s,rate-burst:1,skip-initial:0,auto-adjust:false,max-wait-duration:2s",
    )
    .unwrap();
    let at = admitted(&limits, Kind::Create, 10, Duration::ZERO).await;
    assert_eq!(at.iter().flatten().copied().collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(at.iter().filter(|at| at.is_none()).count(), 7);
    let error = limits.admit(Kind::Create).await.map(Permit::finish);
    assert!(error.is_ok(), "the tokens of those turned away came back: {error:?}");
    let Err(error) = join_all((0..4).map(|_| limits.admit(Kind::Create))).await.pop().unwrap() else {
        panic!("the last of four is turned away");
    };
    assert_eq!(error.to_string(), "request would have to wait 3s to be served (maximum wait duration: 2s)");
}

#[tokio::test(start_paused = true)]
async fn requests_at_once_are_limited_within_the_same_wait() {
    let limits = Limits::new(
        "endpoint-list=rate-limit:0/s,parallel-requests:2,auto-adjust:false,max-wait-duration:3s",
    )
    .unwrap();
    let at = admitted(&limits, Kind::List, 6, Duration::from_secs(2)).await;
    assert_eq!(at, [Some(0), Some(0), Some(2), Some(2), None, None]);
}

#[tokio::test(start_paused = true)]
async fn quick_requests_raise_the_limits_and_slow_ones_lower_them() {
    let limits = Limits::new("endpoint-create=skip-initial:0,mean-over:1").unwrap();
    let limits = &limits;
    let once = |takes| async move {
        let permit = limits.admit(Kind::Create).await.unwrap();
        sleep(takes).await;
        permit.finish()
    };
    // A tenth of the estimate: ten times the rate, half way to ten times the burst and the parallel requests.
    let quick = once(Duration::from_millis(200)).await;
    assert!((quick.adjustment_factor - 10.0).abs() < 0.2, "{quick:?}");
    assert!((quick.rate - 5.0).abs() < 0.1, "{quick:?}");
    assert_eq!((quick.burst, quick.parallel), (22.0, 22));
    // Ten times the estimate: a tenth of the rate; parallel requests do not fall below their minimum.
    let slow = once(Duration::from_secs(20)).await;
    assert!((slow.adjustment_factor - 0.1).abs() < 0.01, "{slow:?}");
    assert!((slow.rate - 0.05).abs() < 0.01, "{slow:?}");
    assert_eq!((slow.burst, slow.parallel), (2.0, 2));
    // Factors are bounded by max-adjustment-factor.
    let instant = once(Duration::ZERO).await;
    assert_eq!((instant.adjustment_factor, instant.rate), (100.0, 50.0));
    assert_eq!((instant.in_flight, instant.max_wait), (0, 60.0));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_while_it_waits_gives_its_token_back() {
    let limits =
        Limits::new("endpoint-create=rate-limit:1/s,rate-burst:1,skip-initial:0,auto-adjust:false").unwrap();
    limits.admit(Kind::Create).await.unwrap().finish();
    let impatient = tokio::time::timeout(Duration::from_millis(10), limits.admit(Kind::Create)).await;
    assert!(impatient.is_err());
    let begin = Instant::now();
    limits.admit(Kind::Create).await.unwrap().finish();
    assert!(begin.elapsed() < Duration::from_millis(1000), "{:?}", begin.elapsed());
}

#[test]
fn kinds_cover_the_operations_of_endpoints() {
    let of: Vec<_> =
        Operation::ALL.iter().filter_map(|&op| Some((Kind::of(op)?.name(), op.name()))).collect();
    assert_eq!(
        of,
        [
            ("endpoint-get", "GetEndpointID"),
            ("endpoint-create", "PutEndpointID"),
            ("endpoint-patch", "PatchEndpointID"),
            ("endpoint-delete", "DeleteEndpointID"),
            ("endpoint-list", "GetEndpoint"),
            ("endpoint-delete", "DeleteEndpoint"),
            ("endpoint-get", "GetEndpointIDConfig"),
            ("endpoint-patch", "PatchEndpointIDConfig"),
            ("endpoint-get", "GetEndpointIDLabels"),
            ("endpoint-patch", "PatchEndpointIDLabels"),
            ("endpoint-get", "GetEndpointIDLog"),
            ("endpoint-get", "GetEndpointIDHealthz"),
        ]
    );
}
