//! Options that change while a hive runs: applied as a whole or not at all, watchers notified, refused ones named.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hive::config::{Foreign, Kind, Reloaded, Source, Standing, Supplied};
use hive::prelude::*;
use hive::{ConfigError, LiveConfig};
use tempfile::TempDir;

#[derive(hive::Config, Debug)]
#[config(check = Limits::check)]
struct Limits {
    #[flag(default = 1, live)]
    low: u32,
    #[flag(default = 10, live)]
    high: u32,
    #[flag(default = 5)]
    fixed: u32,
}

impl Limits {
    fn check(&self) -> Result<(), String> {
        if self.low <= self.high { Ok(()) } else { Err("low must not be above high".to_owned()) }
    }
}

#[derive(hive::Config, Debug)]
#[expect(dead_code, reason = "seen in settings only")]
struct Unwatched {
    #[flag(default = "a", live)]
    name: String,
    #[flag(default = "", live, secret)]
    token: String,
}

struct Running {
    hive: Hive,
    folder: TempDir,
    watch: ConfigWatch<Limits>,
}

impl Running {
    async fn on(files: &[(&str, &str)], args: &[&str]) -> Self {
        let folder = TempDir::new().unwrap();
        write(folder.path(), files);
        let cells = [
            config::<Limits>(),
            config::<Unwatched>(),
            provide(|watch: ConfigWatch<Limits>| Arc::new(watch)),
            invoke(|_: Arc<ConfigWatch<Limits>>, _: Config<Unwatched>, _: Arc<LiveConfig>| ()),
        ];
        let args = args.iter().map(|arg| (*arg).to_owned());
        let args = args.chain([format!("--config-dir={}", folder.path().display())]);
        let mut hive = Hive::builder(cells).config_files().args(args).build().unwrap();
        hive.populate().await.unwrap();
        let watch = (*hive.get::<ConfigWatch<Limits>>().unwrap()).clone();
        Running { hive, folder, watch }
    }

    fn reload(&self) -> Result<Reloaded, Vec<ConfigError>> {
        self.hive.get::<LiveConfig>().unwrap().reload()
    }

    fn running(&self) -> [u32; 3] {
        let limits = self.watch.get();
        [limits.low, limits.high, limits.fixed]
    }
}

fn write(folder: &Path, files: &[(&str, &str)]) {
    for (name, text) in files {
        fs::write(folder.join(name), text).unwrap();
    }
}

fn texts(result: Result<Reloaded, Vec<ConfigError>>) -> Vec<String> {
    result.unwrap_err().iter().map(ToString::to_string).collect()
}

#[tokio::test]
async fn watchers_are_notified() {
    let mut r = Running::on(&[("low", "2")], &[]).await;
    assert_eq!(r.running(), [2, 10, 5]);
    assert_eq!(r.reload(), Ok(Reloaded::default()));
    write(r.folder.path(), &[("low", "3"), ("high", "4")]);
    let reloaded = r.reload().unwrap();
    let changed: Vec<_> =
        reloaded.changed.iter().map(|c| (c.key.as_str(), c.running.as_str(), c.wanted.as_str())).collect();
    assert_eq!(changed, [("high", "10", "4"), ("low", "2", "3")]);
    assert!(reloaded.refused.is_empty());
    r.watch.changed().await;
    assert_eq!(r.running(), [3, 4, 5]);
    let settings = r.hive.get::<LiveConfig>().unwrap().settings();
    assert_eq!(settings.get("low").unwrap().source, Source::Directory(r.folder.path().join("low")));
    // A file that is removed restores the default.
    fs::remove_file(r.folder.path().join("high")).unwrap();
    assert_eq!(r.reload().unwrap().changed[0].wanted, "10");
    assert_eq!(r.running(), [3, 10, 5]);
}

#[tokio::test]
async fn options_that_need_a_restart_are_refused_by_name_each_time() {
    let r = Running::on(&[], &["--high=7"]).await;
    write(r.folder.path(), &[("fixed", "6"), ("low", "2"), ("name", "b"), ("high", "8")]);
    let reloaded = r.reload().unwrap();
    let refused: Vec<String> = reloaded.refused.iter().map(ToString::to_string).collect();
    let at = |name: &str| format!("file {}", r.folder.path().join(name).display());
    assert_eq!(
        refused,
        [
            format!("fixed: running with \"5\", {} says \"6\"", at("fixed")),
            format!("name: running with \"a\", {} says \"b\"", at("name")),
        ]
    );
    // Live options apply nevertheless, and a flag has precedence over a file.
    assert_eq!(r.running(), [2, 7, 5]);
    assert_eq!(r.reload().unwrap().refused, reloaded.refused);
    write(r.folder.path(), &[("fixed", "5"), ("name", "a")]);
    assert_eq!(r.reload(), Ok(Reloaded::default()));
    assert_eq!(r.hive.get::<LiveConfig>().unwrap().live(), ["low", "high"], "the others are not watched");
}

#[tokio::test]
async fn a_reload_applies_as_a_whole_or_not_at_all() {
    let r = Running::on(&[("low", "2")], &[]).await;
    // Each is valid on its own, their combination is not.
    write(r.folder.path(), &[("low", "20")]);
    let at = r.folder.path().join("low").display().to_string();
    assert_eq!(texts(r.reload()), [format!("low must not be above high (set: low=20 (file {at}))")]);
    write(r.folder.path(), &[("low", "3"), ("fixed", "many")]);
    let at = r.folder.path().join("fixed").display().to_string();
    let expected = format!("file {at}: option fixed: \"many\" is not an integer from 0 to 4294967295");
    assert_eq!(texts(r.reload()), [expected]);
    assert_eq!(r.running(), [2, 10, 5]);
    fs::remove_dir_all(r.folder.path()).unwrap();
    let gone = format!("Non-existent configuration directory {}", r.folder.path().display());
    assert_eq!(texts(r.reload()), [gone]);
    assert_eq!(r.running(), [2, 10, 5]);
}

#[tokio::test]
async fn secrets_are_not_shown() {
    let r = Running::on(&[("token", "hunter2")], &[]).await;
    let live = r.hive.get::<LiveConfig>().unwrap();
    write(r.folder.path(), &[("token", "hunter3")]);
    let shown = format!("{:?} {:?} {:?}", live.settings(), r.reload(), live.settings().get("token"));
    assert!(shown.contains("(secret)") && !shown.contains("hunter"), "{shown}");
}

#[test]
fn a_check_holds_at_the_start_as_well() {
    let error = Hive::builder(config::<Limits>()).set("low", 11).build().err().unwrap();
    let text = "low must not be above high (set: low=11 (set by the program))";
    assert!(error.to_string().ends_with(text), "{error}");
}

/// Values of each source with their effect, as `key priority value running: standing`.
#[tokio::test]
async fn drift_is_told_with_its_reason() {
    let folder = TempDir::new().unwrap();
    write(
        folder.path(),
        &[("low", "2"), ("high", "9"), ("fixed", "6"), ("loww", "1"), ("token", "x"), ("tokem", "y")],
    );
    let cells = [
        config::<Limits>(),
        config::<Unwatched>(),
        invoke(|_: ConfigWatch<Limits>, _: Config<Unwatched>| ()),
    ];
    let foreign = ["asked", "left"].map(|name| Foreign::new(name, Kind::Bool));
    let dir = format!("--config-dir={}", folder.path().display());
    let env = [("X_NAME", "e"), ("X_ASKED", "true"), ("X_LEFT", "false")];
    let builder = Hive::builder(cells).config_files().args([dir, "--high=8".to_owned()]).foreign(foreign);
    let env = env.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let mut hive = builder.env("X_", env).build().unwrap();
    hive.populate().await.unwrap();
    let live = hive.get::<LiveConfig>().unwrap();
    let standings = || -> Vec<String> {
        let observed = live.observed();
        let rows = observed.iter().filter(|o| o.key != "config-dir");
        rows.map(|o| {
            let running = o.running.as_deref().unwrap_or("-");
            let text = format!("{} {} {} {running}: {}", o.key, o.priority, o.value, o.standing);
            text.replace(&format!("{}/", folder.path().display()), "")
        })
        .collect()
    };
    let at_first = [
        "asked 3 true -: no effect in this program",
        "fixed 5 6 6: in force",
        "high 2 8 8: in force",
        "high 5 9 8: overridden by command line",
        "left 3 false -: in force",
        "low 5 2 2: in force",
        "loww 5 1 -: unknown, is low meant?",
        "name 3 e e: in force",
        "tokem 5 (secret) -: unknown, is token meant?",
        "token 5 (secret) (secret): in force",
    ];
    assert_eq!(standings(), at_first);
    assert_eq!(hive.settings().observed(), *live.observed());

    let mut watch = live.watch_observed();
    fs::remove_file(folder.path().join("fixed")).unwrap();
    write(folder.path(), &[("low", "3"), ("token", "z")]);
    live.reload().unwrap();
    watch.changed().await;
    assert_eq!(watch.get().iter().filter(|o| o.standing == Standing::NextStart).count(), 2);
    let mut now = at_first.map(str::to_owned).to_vec();
    now[1] = "fixed 6 5 6: takes effect at the next start".to_owned();
    now[5] = "low 5 3 3: in force".to_owned();
    now[9] = "token 5 (secret) (secret): takes effect at the next start".to_owned();
    assert_eq!(standings(), now);

    // One invalid value: the valid ones in the same read wait, with the reason.
    write(folder.path(), &[("fixed", "many"), ("low", "4")]);
    live.reload().unwrap_err();
    let refusal = "file fixed: option fixed: \"many\" is not an integer from 0 to 4294967295";
    assert_eq!(standings()[1], "fixed 5 many 6: wrong: not an integer from 0 to 4294967295");
    assert_eq!(standings()[5], format!("low 5 4 3: refused: {refusal}"));
    assert_eq!(standings()[9], format!("token 5 (secret) (secret): refused: {refusal}"));
    // Back to the first values.
    write(folder.path(), &[("fixed", "6"), ("low", "2"), ("token", "x")]);
    live.reload().unwrap();
    assert_eq!(standings(), at_first);
}

/// Values supplied at run time have precedence over files, not over flags, and can be withdrawn.
#[tokio::test]
async fn supplied_values_are_a_layer_of_their_own() {
    let r = Running::on(&[("low", "2"), ("fixed", "6"), ("mystery", "x")], &["--high=7"]).await;
    let live = r.hive.get::<LiveConfig>().unwrap();
    let supplied = |values: &[(&str, &str)]| {
        let supplied = |(key, value): &(&str, &str)| Supplied::new(*key, *value, "map m");
        live.supply(values.iter().map(supplied).collect());
    };
    let drift = |key: &str, value: &str| live.drift(key, value).map(|drift| drift.to_string());

    supplied(&[("LOW", " 3\n"), ("high", "8"), ("fixed", "9")]);
    assert_eq!(r.running(), [2, 7, 6], "with the next reload");
    let reloaded = r.reload().unwrap();
    assert_eq!(reloaded.changed[0].to_string(), "low: running with \"2\", map m says \"3\"");
    assert_eq!(reloaded.refused[0].to_string(), "fixed: running with \"6\", map m says \"9\"");
    assert_eq!(r.running(), [3, 7, 6]);
    assert_eq!(live.settings().get("low").unwrap().source, Source::Supplied("map m".to_owned()));
    let of_low: Vec<String> = live
        .observed()
        .iter()
        .filter(|observed| observed.key == "low")
        .map(|observed| format!("{} {}: {}", observed.priority, observed.value, observed.standing))
        .collect();
    assert_eq!(of_low, ["4 3: in force", "5 2: overridden by map m"]);

    // An invalid one changes nothing.
    supplied(&[("low", "many")]);
    assert_eq!(texts(r.reload()), ["map m: option low: \"many\" is not an integer from 0 to 4294967295"]);
    assert_eq!(r.running(), [3, 7, 6]);
    supplied(&[]);
    r.reload().unwrap();
    assert_eq!(r.running(), [2, 7, 6]);

    assert_eq!(drift("low", "2\n"), None);
    assert_eq!(drift("high", "8").unwrap(), "high: running with \"7\", wanted \"8\"");
    assert_eq!(drift("low", "many").unwrap(), "low: running with \"2\", wanted \"many\"");
    assert_eq!(drift("mystery", "x"), None, "a file has it");
    assert_eq!(drift("mystery", "y").unwrap(), "mystery: running with \"x\", wanted \"y\"");
    supplied(&[("riddle", "z")]);
    r.reload().unwrap();
    assert_eq!(drift("riddle", "z").unwrap(), "riddle: not set, wanted \"z\"");
}

/// A watch on a struct without live options never resolves; it is reported once, with its place.
#[tokio::test]
async fn a_watch_that_never_resolves_is_logged_as_a_warning() {
    #[derive(hive::Config)]
    #[expect(dead_code, reason = "never read")]
    struct Fixed {
        #[flag(default = 1)]
        size: u32,
    }
    fn follow(_: ConfigWatch<Fixed>, _: ConfigWatch<Limits>) {}
    let cells = [config::<Fixed>(), config::<Limits>(), invoke(follow)];
    let mut hive = TestHive::new(module("m", "x", cells));
    hive.start().await;
    let warnings = hive.logs().into_iter().filter(|line| line.level == hive::LogLevel::WARN);
    let warnings: Vec<String> = warnings.map(|line| line.to_string()).collect();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    for part in ["ConfigWatch of a struct without #[flag(live)] never changes", "Fixed", "follow", "m"] {
        assert!(warning.contains(part), "{warning}");
    }
    hive.logged(hive::LogLevel::INFO, "Started hive");
    hive.finish().await;
}
