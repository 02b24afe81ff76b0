//! Texts as git reads them, and what their keys do.

use super::*;

fn keys(text: &str) -> Vec<String> {
    let findings = executing_keys(text.as_bytes()).unwrap();
    findings.into_iter().map(|finding| finding.key).collect()
}

fn read(text: &str) -> Vec<(String, Option<String>)> {
    let shown = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    read::settings(text.as_bytes())
        .unwrap()
        .into_iter()
        .map(|setting| (shown(setting.key), setting.value.map(shown)))
        .collect()
}

#[test]
fn texts_are_read_as_git_reads_them() {
    for (text, key, value) in [
        ("[core]\n\tx = a b  ; c\n", "core.x", Some("a b")),
        ("[CORE] X=\"a # b \" # c", "core.x", Some("a # b ")),
        ("[a \"B.c\\\"d\"]\nx", "a.B.c\"d.x", None),
        ("[A.B]x=1", "a.b.x", Some("1")),
        ("[a]x = a\\\n  b", "a.x", Some("a  b")),
        ("[a]x = \"a\\tb\\n\\\\\"", "a.x", Some("a\tb\n\\")),
        ("\u{feff}[a]\r\nx = y\r\n", "a.x", Some("y")),
        ("[a]x =", "a.x", Some("")),
        ("[a] ; c\n# d\nx = y # z", "a.x", Some("y")),
        ("[a][b]x = 1", "b.x", Some("1")),
        ("[a]x = a\"b  c\"d   ", "a.x", Some("ab  cd")),
        ("[a]\nx-y\t= 1", "a.x-y", Some("1")),
    ] {
        let expected = vec![(key.to_owned(), value.map(str::to_owned))];
        assert_eq!(read(text), expected, "{text:?}");
    }
}

#[test]
fn what_git_would_not_read_is_malformed() {
    for (text, line) in [
        ("[core", 1),
        ("[core]\nx = \"a\n", 2),
        ("[core]\n\nx = \\q", 3),
        ("[core]\n=x", 2),
        ("[core]\nx y", 2),
        ("[]", 1),
        ("[a b]", 1),
        ("[a \"b\nc\"]", 1),
        ("[a \"b\" ]", 1),
        ("[core]\nx = a\rb", 2),
        ("[core]\nx = \0", 2),
        ("[core]\n1x = 2", 2),
        ("\u{e9}", 1),
    ] {
        let error = executing_keys(text.as_bytes()).unwrap_err();
        assert_eq!(error.line, line, "{text:?}: {error}");
    }
    let long = vec![b'\n'; TEXT_BYTES_MAX + 1];
    assert!(executing_keys(&long).is_err());
}

#[test]
fn keys_that_run_something_are_found() {
    for (text, key) in [
        ("[core]\nfsmonitor = ./x", "core.fsmonitor"),
        ("[CORE]\nHooksPath = x", "core.hookspath"),
        ("[core]sshCommand=x", "core.sshcommand"),
        ("[filter \"a\"]\nclean = x", "filter.a.clean"),
        ("[filter.a]\nsmudge = x", "filter.a.smudge"),
        ("[diff]\nexternal = x", "diff.external"),
        ("[diff \"p\"]\ntextconv = x", "diff.p.textconv"),
        ("[merge \"a\"]\ndriver = x", "merge.a.driver"),
        ("[alias]\nst = !x", "alias.st"),
        ("[alias]\nst = status -s", "alias.st"),
        ("[alias \"st\"]\ncommand = x", "alias.st.command"),
        ("[gpg \"ssh\"]\nprogram = x", "gpg.ssh.program"),
        (
            "[credential \"https://h\"]\nhelper = x",
            "credential.https://h.helper",
        ),
        ("[include]\npath = x", "include.path"),
        (
            "[includeIf \"gitdir:/\"]\npath = x",
            "includeif.gitdir:/.path",
        ),
        ("[pager]\nlog = x", "pager.log"),
        ("[remote \"o\"]\nurl = ext::sh -c x", "remote.o.url"),
        ("[remote \"o\"]\nuploadpack = x", "remote.o.uploadpack"),
        ("[submodule \"s\"]\nupdate = !x", "submodule.s.update"),
        ("[url \"a\"]\ninsteadOf = b", "url.a.insteadof"),
        ("[protocol \"ext\"]\nallow = always", "protocol.ext.allow"),
        ("[http]\nsslVerify = false", "http.sslverify"),
        ("[http \"https://h/\"]\nproxy = x", "http.https://h/.proxy"),
        ("[core]\nworktree = ../../..", "core.worktree"),
        ("[branch \"m\"]\nremote = ext::x", "branch.m.remote"),
        ("[branch \"m\"]\npushRemote = e", "branch.m.pushremote"),
        ("[hook \"a\"]\ncommand = x", "hook.a.command"),
        ("[unheard]\nof = x", "unheard.of"),
        ("[core]\nunheardOf = x", "core.unheardof"),
        ("x = y", "x"),
    ] {
        assert_eq!(keys(text), [key], "{text}");
    }
}

#[test]
fn what_git_writes_by_itself_passes() {
    let clone = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\
        \tlogallrefupdates = true\n[remote \"origin\"]\n\turl = https://example.org/x.git\n\
        \tfetch = +refs/heads/*:refs/remotes/origin/*\n[branch \"main\"]\n\tremote = origin\n\
        \tmerge = refs/heads/main\n[submodule]\n\tactive = .\n[submodule \"s\"]\n\
        \turl = ../s.git\n\tupdate = rebase\n[core]\n\tfsmonitor = true\n[pager]\n\tlog = false\n\
        [branch \"x\"]\n\tremote = .\n[user]\n\tname = A\n[extensions]\n\tworktreeConfig = true\n";
    assert_eq!(keys(clone), Vec::<String>::new());
    let module = "[core]\n\tworktree = ../../../sub\n";
    let place = b".git/modules/sub";
    assert_eq!(
        newly_executing_in(b"", module.as_bytes(), place),
        Ok(vec![])
    );
    // A branch of a submodule may be called `config`.
    let reference = format!("{}\n", "a1".repeat(20));
    assert_eq!(keys(&reference), Vec::<String>::new());
}

#[test]
fn only_what_is_new_is_found() {
    let old = b"[core]\n\tpager = less\n[remote \"o\"]\n\turl = https://a/\n";
    let found = |new: &str| {
        let findings = newly_executing(old, new.as_bytes()).unwrap();
        findings
            .into_iter()
            .map(|finding| (finding.key, finding.line))
            .collect::<Vec<_>>()
    };
    let key = |key: &str, line| vec![(key.to_owned(), line)];
    assert_eq!(found("[core]\npager = less\n[user]\nname = A\n"), vec![]);
    assert_eq!(found("[core]\npager = evil\n"), key("core.pager", 2));
    assert_eq!(
        found("[remote \"o\"]\nurl = https://b/\n"),
        key("remote.o.url", 2)
    );
    assert_eq!(found("[remote \"p\"]\nurl = https://b/\n"), vec![]);
    // Subsections are compared with their case.
    assert_eq!(found("[remote \"O\"]\nurl = https://b/\n"), vec![]);
    assert!(
        newly_executing(b"[", b"[core]\npager = less")
            .unwrap()
            .len()
            == 1
    );
    assert!(newly_executing(old, b"[").is_err());
}

/// What git itself reads; `None` where it refuses.
fn read_by_git(text: &str) -> Option<Vec<(String, Option<String>)>> {
    use std::io::Write;
    let mut git = std::process::Command::new("git")
        .args(["config", "--file", "-", "--list", "-z"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .current_dir("/")
        .spawn()
        .unwrap();
    git.stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let output = git.wait_with_output().unwrap();
    let listed = String::from_utf8(output.stdout).unwrap();
    let setting = |line: &str| match line.split_once('\n') {
        Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
        None => (line.to_owned(), None),
    };
    let settings = listed.split_terminator('\0').map(setting).collect();
    output.status.success().then_some(settings)
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(400))]

    /// What git reads is read here in the same way, and what it refuses is
    /// refused. Only a lone carriage return is refused here alone.
    #[test]
    fn the_reader_agrees_with_git(
        parts in proptest::collection::vec(proptest::sample::select(&[
            "[", "]", "[a]", "[B \"", "\"]", "core", "X", ".", "\"", "\\", "\n", "\n", " ", "\t",
            "=", "= ", "#", ";", "n", "x", "1", "-", "\r\n", "\u{e9}", "\\\n", "\\\"", "\\t",
            "[a]\nx = ", "[a \"b\"]\ny", "\u{feff}",
        ][..]), 0..14),
        begun in proptest::bool::ANY,
    ) {
        if std::process::Command::new("git").arg("--version").output().is_err() {
            println!("skipped: there is no git");
            return Ok(());
        }
        let text = format!("{}{}", if begun { "[a]\n" } else { "" }, parts.concat());
        let ours = read::settings(text.as_bytes()).ok().map(|settings| {
            let shown = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
            let settings = settings.into_iter();
            settings.map(|setting| (shown(setting.key), setting.value.map(shown))).collect()
        });
        let theirs = read_by_git(&text);
        // Old versions of git make one space of several within a value.
        let alike = |settings: Option<Vec<(String, Option<String>)>>| settings.map(|settings| {
            let spaced = |value: String| value.split([' ', '\t']).filter(|word| !word.is_empty())
                .collect::<Vec<_>>().join(" ");
            settings.into_iter().map(|(key, value)| (key, value.map(spaced))).collect::<Vec<_>>()
        });
        proptest::prop_assert_eq!(alike(ours), alike(theirs), "{:?}", text);
    }
}
