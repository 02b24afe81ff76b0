//! What the built-in list and policies say about paths.

use std::sync::LazyLock;

use super::*;

fn judged(path: &str) -> Option<(Kind, Strength)> {
    static GUARD: LazyLock<Guard> = LazyLock::new(Guard::built_in);
    let rule = GUARD.judge(path.as_bytes())?;
    Some((rule.kind, rule.strength))
}

fn entry(rank: Rank, strength: Strength, pattern: &str) -> Entry {
    let removes = pattern.starts_with('!');
    Entry {
        rule: Rule {
            kind: Kind::Custom,
            strength,
            judged: Judged::Always,
            pattern: pattern.trim_start_matches('!').to_owned(),
            rule: crate::compile::fixtures::rule("filesystem.guard[0]"),
        },
        removes,
        rank,
    }
}

/// The strength after these entries on top of the built-in list.
fn with(entries: &[Entry], path: &str) -> Option<Strength> {
    Guard::new(entries.to_vec(), vec![Rank::BuiltIn])
        .judge(path.as_bytes())
        .map(|rule| rule.strength)
}

#[test]
fn every_line_of_the_list_parses_and_says_something_of_its_own() {
    let text = include_str!("../../data/guarded.paths");
    let entries = data::parse(text).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for entry in &entries {
        let key = (entry.rule.kind, &entry.rule.pattern, entry.removes);
        assert!(seen.insert(key), "{} twice", entry.rule.pattern);
        let pattern = Pattern::new(&entry.rule.pattern);
        let literal = pattern.0.iter().any(|part| match part {
            Component::Any => false,
            Component::Literal(_) => true,
            Component::Wildcard(text) => text != b"*",
        });
        assert!(literal, "{} matches everything", entry.rule.pattern);
    }
    let hold = entries
        .iter()
        .filter(|entry| entry.rule.strength == Strength::Hold);
    assert!(hold.count() > 200);
}

#[test]
fn lines_that_are_no_rules_are_named() {
    for (line, why) in [
        ("git hold always **/x", "no reason"),
        ("git hold always x y", "start with"),
        ("git hold always **/../x y", "odd component"),
        ("git keep always **/x y", "strength"),
        ("got hold always **/x y", "kind"),
        ("git hold perhaps **/x y", "judged"),
        ("git hold", "fewer"),
    ] {
        let error = data::parse(&format!("# comment\n{line}\n")).unwrap_err();
        assert!(
            error.starts_with("line 2: ") && error.contains(why),
            "{line}: {error}"
        );
    }
}

#[test]
fn what_runs_outside_is_held() {
    use Kind::{Agent, Build, Ci, Editor, Git, Policy, Shell};
    for (path, kind) in [
        (".git/hooks/pre-commit", Git),
        (".git/hooks/lib/common.sh", Git),
        ("a/b/.GIT/Hooks/post-checkout", Git),
        (".g\u{200c}it/hooks/pre-push", Git),
        ("git~1/hooks/pre-push", Git),
        (".git/modules/a/b/hooks/post-checkout", Git),
        (".git/modules/a/refs/hooks/post-checkout", Git),
        (".git/config", Git),
        (".git/modules/a/config", Git),
        (".git/worktrees/w/config.worktree", Git),
        (".git/info/attributes", Git),
        ("sub/.git", Git),
        (".git/commondir", Git),
        (".husky/pre-commit", Git),
        (".github/workflows/ci.yml", Ci),
        ("x/.gitlab-ci.yml", Ci),
        (".circleci", Ci),
        (".vscode/tasks.json", Editor),
        ("x.code-workspace", Editor),
        (".idea/runConfigurations/a.xml", Editor),
        (".envrc", Shell),
        ("node_modules/x/.envrc", Shell),
        ("mise.local.toml", Shell),
        (".cargo/config.toml", Build),
        (".claude/settings.local.json", Agent),
        (".claude/skills/x/run.sh", Agent),
        (".mcp.json", Agent),
        ("stockade.toml", Policy),
        ("deep/down/stockade.toml", Policy),
    ] {
        assert_eq!(judged(path), Some((kind, Strength::Hold)), "{path}");
    }
}

#[test]
fn what_steers_by_convention_is_reported() {
    for path in [
        "CLAUDE.md",
        "a/AGENTS.md",
        "package.json",
        "Makefile",
        "venv/bin/python3",
        "venv/lib/python3/site-packages/x.pth",
        ".gitattributes",
        ".git/rebase-merge/git-rebase-todo",
        ".git/objects/info/alternates",
        "build.rs",
    ] {
        let strength = judged(path).map(|(_, strength)| strength);
        assert_eq!(strength, Some(Strength::Report), "{path}");
    }
}

#[test]
fn ordinary_work_is_not_guarded() {
    for path in [
        "src/main.rs",
        ".git/index",
        ".git/index.lock",
        ".git/HEAD",
        ".git/objects/aa/bb",
        ".git/refs/heads/hooks/pre-commit",
        ".git/refs/heads/config",
        ".git/logs/refs/heads/main",
        ".git/hooks/pre-commit.sample",
        ".git/modules/a/refs/heads/hooks/x",
        ".git/config.lock",
        ".git/info/exclude",
        ".gitignore",
        "hooks/use-thing.ts",
        "config",
        ".vscode/snippets.code-snippets",
        "node_modules/x/.travis.yml",
        "node_modules/x/package.json",
        "node_modules/x/.vscode/settings.json",
        "lib/site-packages/x/.github/workflows/ci.yml",
        "docs/claude.markdown",
        "",
    ] {
        assert_eq!(judged(path), None, "{path}");
    }
}

#[test]
fn files_of_git_are_judged_by_what_they_say() {
    let guard = Guard::built_in();
    let judged = |path: &str| guard.judge(path.as_bytes()).unwrap().judged;
    assert_eq!(judged("a/.git/config"), Judged::GitConfig);
    assert_eq!(judged(".git/modules/x/config"), Judged::GitConfig);
    assert_eq!(judged("sub/.git"), Judged::GitPointer);
    assert_eq!(judged(".git/worktrees/w/commondir"), Judged::GitPointer);
    assert_eq!(judged(".git/hooks/update"), Judged::Always);
}

#[test]
fn moving_a_directory_is_looked_at_where_names_lead() {
    let guard = Guard::built_in();
    for path in [
        ".git",
        ".git/hooks",
        ".git/modules/x",
        ".github",
        ".github/workflows",
        "a/.vscode",
        ".claude",
        ".cargo",
        ".husky",
        ".GitHub",
    ] {
        assert!(guard.is_above(path.as_bytes()), "{path}");
    }
    for path in [
        "src",
        "a/b",
        ".git/objects",
        ".git/refs",
        "target",
        "bin",
        "node_modules",
    ] {
        assert!(!guard.is_above(path.as_bytes()), "{path}");
    }
}

#[test]
fn in_a_granted_git_directory_the_names_above_count() {
    let grant = AbsolutePath::parse("/home/u/main/.git").unwrap();
    let guard = Guard::built_in();
    let strength = |path: &str| {
        guard
            .judge_below(&grant, path.as_bytes())
            .map(|rule| rule.strength)
    };
    assert_eq!(strength("hooks/pre-commit"), Some(Strength::Hold));
    assert_eq!(strength("config"), Some(Strength::Hold));
    assert_eq!(strength("worktrees/w/commondir"), Some(Strength::Hold));
    assert_eq!(strength("objects/aa/bb"), None);
    assert!(guard.is_above_below(&grant, b"hooks"));
    assert!(!guard.is_above_below(&grant, b"objects"));
}

#[test]
fn users_move_add_and_remove() {
    use Rank::User;
    use Strength::{Hold, Report};
    let entries = [
        entry(User, Hold, "deploy"),
        entry(User, Hold, "!deploy/notes"),
        entry(User, Hold, "!.vscode/extensions.json"),
        entry(User, Hold, "!.vscode/settings.json"),
        entry(User, Report, ".vscode/settings.json"),
        entry(User, Report, ".vscode/launch.json"),
        entry(User, Report, "!Makefile"),
        entry(User, Report, "!.envrc"),
    ];
    for (path, strength) in [
        ("a/deploy/x", Some(Hold)),
        ("deploy", Some(Hold)),
        ("deploy/notes/y", None),
        (".vscode/extensions.json", None),
        (".vscode/settings.json", Some(Report)),
        (".vscode/tasks.json", Some(Hold)),
        (".vscode/launch.json", Some(Hold)),
        ("x/.vscode/settings.json", Some(Hold)),
        ("sub/Makefile", None),
        // What is held cannot be taken out of the report.
        (".envrc", Some(Hold)),
    ] {
        assert_eq!(with(&entries, path), strength, "{path}");
    }
}

#[test]
fn the_organisation_stands_above_users_and_a_project_only_adds() {
    use Rank::{Organisation, Project, User};
    use Strength::{Hold, Report};
    let entries = vec![
        entry(User, Hold, "!.github/**"),
        entry(User, Hold, "!secret"),
        entry(Organisation, Hold, "secret"),
        entry(Organisation, Hold, "!.envrc"),
        entry(Organisation, Report, ".envrc"),
        entry(User, Hold, "Makefile"),
        entry(Project, Report, ".github/workflows/**"),
        entry(Project, Report, ".vscode/tasks.json"),
        entry(Project, Hold, "package.json"),
    ];
    for (path, strength) in [
        (".github/workflows/x", Some(Report)),
        (".github/actions/x", None),
        ("secret", Some(Hold)),
        (".envrc", Some(Report)),
        ("Makefile", Some(Hold)),
        (".vscode/tasks.json", Some(Hold)),
        ("package.json", Some(Hold)),
    ] {
        assert_eq!(with(&entries, path), strength, "{path}");
    }
    // The organisation insists on the built-in list.
    let guard = Guard::new(entries, vec![Organisation]);
    let strength = |path: &str| guard.judge(path.as_bytes()).map(|rule| rule.strength);
    assert_eq!(strength(".github/actions/x"), Some(Hold));
    assert_eq!(strength("node_modules/x/.travis.yml"), None);
    assert_eq!(Guard::nothing().judge(b".git/hooks/pre-commit"), None);
}

#[test]
fn judging_agrees_with_trying_every_rule() {
    // The index by names leaves no rule out.
    let guard = Guard::built_in();
    for entry in guard.entries().iter().filter(|entry| !entry.removes) {
        let example = entry.rule.pattern.replace("**/", "d/").replace("**", "f");
        let example = example.replace(['*', '?'], "x");
        let table = guard.table();
        let expected = table
            .entries
            .iter()
            .zip(&table.compiled)
            .any(|(other, compiled)| {
                !other.removes && compiled.pattern.matches(&components(example.as_bytes()))
            });
        assert!(expected);
        let found = guard.judge(example.as_bytes()).is_some();
        assert!(found, "{example}");
    }
}
