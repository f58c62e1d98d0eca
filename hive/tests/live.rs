//! Options that change while a hive runs: all or nothing, told to those who watch, refused by name.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use hive::config::{Reloaded, Source};
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
async fn who_watches_is_told() {
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
    // A file that goes gives the default back.
    fs::remove_file(r.folder.path().join("high")).unwrap();
    assert_eq!(r.reload().unwrap().changed[0].wanted, "10");
    assert_eq!(r.running(), [3, 10, 5]);
}

#[tokio::test]
async fn what_needs_a_restart_is_refused_by_name_each_time() {
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
    // What is live counts nevertheless, and a flag counts more than a file.
    assert_eq!(r.running(), [2, 7, 5]);
    assert_eq!(r.reload().unwrap().refused, reloaded.refused);
    write(r.folder.path(), &[("fixed", "5"), ("name", "a")]);
    assert_eq!(r.reload(), Ok(Reloaded::default()));
    assert_eq!(r.hive.get::<LiveConfig>().unwrap().live(), ["low", "high"], "nobody watches the others");
}

#[tokio::test]
async fn nothing_is_half_applied() {
    let r = Running::on(&[("low", "2")], &[]).await;
    // Each is right for itself, together they are not.
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
