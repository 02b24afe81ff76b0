//! What a policy takes out of the guarded paths, and what keeps the rest.

use crate::guarantee::Guarantee::FS4;
use crate::plan::Step;
use crate::policy::Policy;

use super::findings::Findings;

/// Names each pattern that is taken out, at each run.
pub(super) fn say_what_is_weakened(policy: &Policy, findings: &mut Findings) {
    let mut weakened = |what: String| {
        findings.note(what.clone());
        findings.lose(FS4, what);
    };
    if let Some(rule) = policy.guard.built_in_taken_by() {
        weakened(format!(
            "the built-in list of guarded paths is switched off by {} ({})",
            rule.id, rule.origin
        ));
    }
    for entry in policy.guard.said().iter().filter(|entry| entry.removes) {
        let rule = &entry.rule.rule;
        weakened(format!(
            "{:?} is taken out of the guarded paths by {} ({})",
            entry.rule.pattern, rule.id, rule.origin
        ));
    }
}

/// What keeps guarded paths from becoming active outside, or why nothing does.
pub(super) fn mechanism(policy: &Policy, steps: &[Step]) -> Result<&'static str, &'static str> {
    if policy.write.is_empty() {
        return Ok("nothing outside can be written");
    }
    let mut keeping = steps.iter().filter(|step| step.holds.contains(&FS4));
    match keeping.next() {
        Some(step) if step.name == NAMES_STEP => {
            Ok("what makes names in the workspace asks the guard; Landlock refuses every other way")
        }
        Some(_) => Ok("writes go to a layer of their own until they are applied"),
        None => Err(
            "names in the workspace are not supervised in this plan: that needs Landlock with ABI 3, \
             held system calls (Linux 5.19), no nested sandbox and no kernel of the command's own",
        ),
    }
}

/// The step after which a process outside makes names.
const NAMES_STEP: &str = "confine.names";

#[cfg(test)]
mod tests {
    use crate::compile::fixtures::{compiled, facts, policy, rule};
    use crate::guarantee::Guarantee::FS4;
    use crate::guard::{Entry, Guard, Judged, Kind, Rank, Rule, Strength};
    use crate::path::AbsolutePath;
    use crate::plan::Hold;

    use super::*;

    fn removal() -> Guard {
        let entry = Entry {
            rule: Rule {
                kind: Kind::Custom,
                strength: Strength::Hold,
                judged: Judged::Always,
                pattern: ".envrc".to_owned(),
                rule: rule("filesystem.guard[0]"),
            },
            removes: true,
            rank: Rank::User,
        };
        Guard::new(vec![entry], vec![Rank::BuiltIn])
    }

    #[test]
    fn what_is_taken_out_is_said_at_each_run() {
        let mut policy = policy();
        policy.guard = removal();
        let plan = compiled(&policy, &facts()).unwrap();
        let said =
            "\".envrc\" is taken out of the guarded paths by filesystem.guard[0] (stockade.toml:1)";
        assert!(plan.notes.contains(&said.to_owned()), "{:?}", plan.notes);

        policy.guard = Guard::nothing().without_built_in(rule("filesystem.guard[0]"));
        let plan = compiled(&policy, &facts()).unwrap();
        assert!(plan.notes[0].contains("switched off by filesystem.guard[0]"));
    }

    #[test]
    fn nothing_is_said_where_nothing_is_weakened() {
        let plan = compiled(&policy(), &facts()).unwrap();
        assert!(!plan.notes.iter().any(|note| note.contains("guarded")));
    }

    #[test]
    fn it_is_held_only_where_a_step_keeps_it() {
        let mut plan = compiled(&policy(), &facts()).unwrap();
        let mut step = plan.steps[0].clone();
        plan.steps.retain(|step| !step.holds.contains(&FS4));
        assert!(mechanism(&policy(), &plan.steps).is_err());
        step.holds = vec![FS4];
        step.name = NAMES_STEP.to_owned();
        plan.steps.push(step.clone());
        let live = mechanism(&policy(), &plan.steps).unwrap();
        assert!(live.contains("asks the guard"));
        step.name = "view.overlay /x".to_owned();
        assert_ne!(mechanism(&policy(), &[step]).unwrap(), live);
        let mut nothing = policy();
        nothing.write.clear();
        assert!(mechanism(&nothing, &[]).is_ok());
        let plan = compiled(&nothing, &facts()).unwrap();
        let fs4 = plan.guarantees.iter().find(|(id, _)| *id == FS4).unwrap();
        assert!(matches!(fs4.1, Hold::Held { .. }));
    }

    #[test]
    fn a_plan_judges_paths_by_the_grant_they_lie_in() {
        let mut policy = policy();
        let common = crate::compile::fixtures::grant("filesystem.write[1]", "/home/u/main/.git");
        policy.write.push(common);
        let mut facts = facts();
        let directory = facts.paths[&AbsolutePath::parse("/home/u/project").unwrap()].clone();
        for path in ["/home/u/main", "/home/u/main/.git"] {
            let path = AbsolutePath::parse(path).unwrap();
            let mut fact = directory.clone();
            fact.resolved = Some(path.clone());
            facts.paths.insert(path, fact);
        }
        let plan = compiled(&policy, &facts).unwrap();
        let strength = |path: &str| {
            let path = AbsolutePath::parse(path).unwrap();
            plan.guarded(&path).map(|rule| rule.strength)
        };
        assert_eq!(strength("/home/u/project/.envrc"), Some(Strength::Hold));
        assert_eq!(strength("/home/u/project/src"), None);
        assert_eq!(
            strength("/home/u/main/.git/hooks/update"),
            Some(Strength::Hold)
        );
        assert_eq!(strength("/home/u/main/.git/index"), None);
        assert_eq!(strength("/home/u/elsewhere/.envrc"), None);
    }
}
