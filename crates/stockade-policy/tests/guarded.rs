//! Guarded paths as policies name them, and what the layers come to.

use stockade_policy::document::parse;
use stockade_policy::guard::{Guard, Strength};
use stockade_policy::merge::merge;
use stockade_policy::path::AbsolutePath;
use stockade_policy::problem::{Layer, LayerKind, Problem, Trust};
use stockade_policy::validate::{Context, validate};

fn context() -> Context {
    let path = |text: &str| AbsolutePath::parse(text).unwrap();
    Context {
        workspace: path("/home/u/project"),
        home: path("/home/u"),
    }
}

fn guard(layers: &[(LayerKind, &str)]) -> Result<Guard, Vec<Problem>> {
    let mut policies = Vec::new();
    for (kind, source) in layers {
        let name = format!("{kind:?}");
        let source = format!("version = 1\n[filesystem]\n{source}\n");
        let document = parse(source.as_bytes(), &Layer::new(*kind, name))?;
        policies.push(validate(&document, &context())?);
    }
    Ok(merge(&policies, &context())?.guard)
}

fn strength(guard: &Guard, path: &str) -> Option<Strength> {
    guard.judge(path.as_bytes()).map(|rule| rule.strength)
}

const USER: LayerKind = LayerKind::User;
const ORGANISATION: LayerKind = LayerKind::Organisation;
const TRUSTED: LayerKind = LayerKind::Project(Trust::Trusted);
const UNTRUSTED: LayerKind = LayerKind::Project(Trust::Untrusted);

#[test]
fn the_built_in_list_counts_unless_somebody_says_otherwise() {
    for source in [
        "",
        "guard = []",
        "guard = [\"defaults\"]",
        "guard = [\"deploy\"]",
    ] {
        let guard = guard(&[(USER, source)]).unwrap();
        let held = strength(&guard, ".git/hooks/pre-commit");
        assert_eq!(held, Some(Strength::Hold), "{source}");
    }
    let off = guard(&[(USER, "guard = [\"!defaults\", \"deploy\"]")]).unwrap();
    assert_eq!(strength(&off, ".git/hooks/pre-commit"), None);
    assert_eq!(strength(&off, "a/deploy/x"), Some(Strength::Hold));
    assert!(off.built_in_taken_by().is_some());
}

#[test]
fn the_organisation_can_insist() {
    let layers = [
        (USER, "guard = [\"!defaults\", \"!.envrc\"]"),
        (ORGANISATION, "guard = [\"defaults\"]"),
    ];
    let guard = guard(&layers).unwrap();
    assert_eq!(strength(&guard, ".envrc"), Some(Strength::Hold));
    assert_eq!(strength(&guard, ".git/hooks/update"), Some(Strength::Hold));
}

#[test]
fn a_user_moves_what_is_held_to_the_report() {
    let source = "guard = [\"!.vscode/settings.json\"]\nguard_report = [\".vscode/settings.json\", \"!Makefile\"]";
    let guard = guard(&[(USER, source)]).unwrap();
    assert_eq!(
        strength(&guard, ".vscode/settings.json"),
        Some(Strength::Report)
    );
    assert_eq!(strength(&guard, ".vscode/tasks.json"), Some(Strength::Hold));
    assert_eq!(strength(&guard, "Makefile"), None);
}

#[test]
fn a_project_adds_and_takes_nothing_out() {
    for kind in [TRUSTED, UNTRUSTED] {
        let added = guard(&[
            (USER, "guard = [\"!.envrc\"]"),
            (
                kind,
                "guard = [\".envrc\", \"deploy/**\"]\nguard_report = [\".git/hooks/**\"]",
            ),
        ])
        .unwrap();
        assert_eq!(strength(&added, ".envrc"), Some(Strength::Hold));
        assert_eq!(strength(&added, "deploy/x"), Some(Strength::Hold));
        assert_eq!(strength(&added, ".git/hooks/update"), Some(Strength::Hold));
        for source in [
            "guard = [\"!.envrc\"]",
            "guard = [\"!defaults\"]",
            "guard_report = [\"!Makefile\"]",
        ] {
            let problems = guard(&[(kind, source)]).unwrap_err();
            assert_eq!(problems[0].id, "guard-weakened", "{source}");
            assert_eq!(problems[0].line, Some(3));
        }
    }
}

#[test]
fn patterns_that_cannot_be_meant_are_refused() {
    for source in [
        "guard = [\"**\"]",
        "guard = [\"!*\"]",
        "guard = [\"../x\"]",
        "guard = [\"~/x\"]",
        "guard = [\"{a,b}\"]",
        "guard = [\"\"]",
        "guard = [\"!!x\"]",
        "guard_report = [\"defaults\"]",
        "guard_report = [\"!defaults\"]",
        "guard = [\"x[\"]",
    ] {
        let problems = guard(&[(USER, source)]).unwrap_err();
        assert_eq!(problems[0].id, "bad-pattern", "{source}");
        assert!(
            problems[0].help.is_some() || source.contains('['),
            "{source}"
        );
    }
}

#[test]
fn who_denies_wins() {
    let deny = "[approval]\nguarded = \"deny\"";
    let ask = "[approval]\nguarded = \"ask\"";
    assert!(guard(&[]).unwrap().refused_by().is_none());
    assert!(guard(&[(USER, ask)]).unwrap().refused_by().is_none());
    for kind in [ORGANISATION, USER, TRUSTED, UNTRUSTED] {
        let layers = [(kind, deny), (LayerKind::CommandLine, ask)];
        let guard = guard(&layers).unwrap();
        assert_eq!(guard.refused_by().unwrap().id, "approval.guarded");
    }
}
