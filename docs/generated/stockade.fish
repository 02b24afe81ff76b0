# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_stockade_global_optspecs
    string join \n h/help V/version
end

function __fish_stockade_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_stockade_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_stockade_using_subcommand
    set -l cmd (__fish_stockade_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c stockade -n "__fish_stockade_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_needs_command" -s V -l version -d 'Print version'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "run" -d 'Run a command in a fresh sandbox'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "shell" -d 'Open a shell in a fresh sandbox'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "start" -d 'Start a sandbox that stays, for many commands'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "copy" -d 'Copy files into a sandbox that stays, or out of it'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "cp" -d 'Copy files into a sandbox that stays, or out of it'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "exec" -d 'Run a command in a sandbox that stays'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "list" -d 'Show the sandboxes that stay'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "stop" -d 'End sandboxes that stay'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "explain" -d 'Show what a command could read, write, execute and reach'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "test" -d 'Ask whether something is allowed, and by which rule'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "diff" -d 'Show what a run in review mode changed'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "apply" -d 'Bring what a run in review mode changed into the project'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "discard" -d 'Drop what a run in review mode changed'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "snapshot" -d 'Remember the project, or what a waiting run shows of it'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "fork" -d 'Make a waiting run that begins with a snapshot'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "restore" -d 'Give the project, or a fork, back as a snapshot saw it'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "doctor" -d 'Show what this machine can hold, and what to do about the rest'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "init" -d 'Write a commented stockade.toml'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "trust" -d 'Let the project\'s stockade.toml widen what its runs may do'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "untrust" -d 'Take the trust in a project\'s stockade.toml back'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "learn" -d 'Run a command and print the network policy that it needs'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "approvals" -d 'Show and answer what commands want to reach, and what is held of what they wrote'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "reload" -d 'Give running commands the network rules as the files say them now'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "log" -d 'Show what runs did, which rule spoke, and whether the log is intact'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "secret" -d 'Keep secrets for credentials, outside every sandbox'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "cache" -d 'Show or clear the caches that runs keep for each project'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "image" -d 'Import, list and remove images for the container wall'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "vm" -d 'Build, list and remove machine images for the microVM wall'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "gc" -d 'Clear away what killed processes left behind'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "completions" -d 'Print completions for a shell'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "man" -d 'Print the manual page'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "schema" -d 'Print the JSON Schema of stockade.toml'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "attack-inside" -d 'Run one attack of the corpus, inside a sandbox'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "tend" -d 'Keep the layers of a project in order; started by what makes it due'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "egress" -d 'Carry the connections of one sandbox; started by `stockade run`'
complete -c stockade -n "__fish_stockade_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand run" -l project -d 'Project directory; otherwise the nearest one upwards with a stockade.toml, else with a .git, else the current directory' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand run" -l wall -d 'The wall: `process`, `container` with limits that the kernel counts exactly, `gvisor` or `microvm` with a kernel of its own besides; after `at-least:` the cheapest from there on that holds everything. The strongest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l image -d 'Run on an imported image instead of the host\'s system directories (`stockade image`; needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l runtime -d 'Have an installed OCI runtime make the container: `runc` or `crun` (needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l accept-runtime -d 'Use exactly this version of it, whatever is known against its number' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l accelerator -d 'What executes a machine: `kvm` or `tcg` (needs the wall `microvm`); without it KVM, where a trial shows that it works' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l preset -d 'Start from a named preset' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l read -d 'Also let it read PATH, or the set `toolchains`' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l write -d 'Also let it write PATH' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l workspace -d 'How writes reach the project: `live` (directly), `review` (into a layer that you apply afterwards) or `discard`; the strictest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l hide -d 'Hide what matches GLOB below the granted directories' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l allow -d 'Also let it reach HOST: `host`, `*.host`, `**.host`, with `:port` where it is not 443 or 80' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l publish -d 'Make a port of a server inside reachable on this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l host-port -d 'Let it reach a port of this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l env -d 'Let the variable NAME (or PREFIX_*) in; NAME=VALUE sets it' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l memory -d 'Most memory, for example 2GiB or 50%' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l processes -d 'Most processes and threads' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l cpus -d 'Most processors, for example 1.5' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l open-files -d 'Most open files of each process' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l wall-time -d 'End the run after this long, for example 10m (exit code 124)' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l disk -d 'Most bytes in the private directories (/tmp, home, …)' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -s C -l directory -d 'Run in DIR, which must lie in the project' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand run" -l on -d 'Go on from a snapshot or a fork of the workspace, in review mode' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l report -d 'Write how it ended to FILE as JSON: exit or signal, limit, guarantees with evidence, plan digest, duration, peak memory' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand run" -l fail-step -d 'Test aid: make the named step fail, to see that nothing runs' -r
complete -c stockade -n "__fish_stockade_using_subcommand run" -l nested-sandbox -d 'Let tools inside make their own sandbox (Chromium, bubblewrap)'
complete -c stockade -n "__fish_stockade_using_subcommand run" -s q -l quiet -d 'Say nothing on standard error but refusals'
complete -c stockade -n "__fish_stockade_using_subcommand run" -s v -l verbose -d 'Say how each guarantee is held before the command starts'
complete -c stockade -n "__fish_stockade_using_subcommand run" -l attack-corpus -d 'For `doctor --attack`: also grant the program of this process'
complete -c stockade -n "__fish_stockade_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l project -d 'Project directory; otherwise the nearest one upwards with a stockade.toml, else with a .git, else the current directory' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l wall -d 'The wall: `process`, `container` with limits that the kernel counts exactly, `gvisor` or `microvm` with a kernel of its own besides; after `at-least:` the cheapest from there on that holds everything. The strongest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l image -d 'Run on an imported image instead of the host\'s system directories (`stockade image`; needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l runtime -d 'Have an installed OCI runtime make the container: `runc` or `crun` (needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l accept-runtime -d 'Use exactly this version of it, whatever is known against its number' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l accelerator -d 'What executes a machine: `kvm` or `tcg` (needs the wall `microvm`); without it KVM, where a trial shows that it works' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l preset -d 'Start from a named preset' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l read -d 'Also let it read PATH, or the set `toolchains`' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l write -d 'Also let it write PATH' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l workspace -d 'How writes reach the project: `live` (directly), `review` (into a layer that you apply afterwards) or `discard`; the strictest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l hide -d 'Hide what matches GLOB below the granted directories' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l allow -d 'Also let it reach HOST: `host`, `*.host`, `**.host`, with `:port` where it is not 443 or 80' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l publish -d 'Make a port of a server inside reachable on this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l host-port -d 'Let it reach a port of this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l env -d 'Let the variable NAME (or PREFIX_*) in; NAME=VALUE sets it' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l memory -d 'Most memory, for example 2GiB or 50%' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l processes -d 'Most processes and threads' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l cpus -d 'Most processors, for example 1.5' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l open-files -d 'Most open files of each process' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l wall-time -d 'End the run after this long, for example 10m (exit code 124)' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l disk -d 'Most bytes in the private directories (/tmp, home, …)' -r
complete -c stockade -n "__fish_stockade_using_subcommand shell" -l nested-sandbox -d 'Let tools inside make their own sandbox (Chromium, bubblewrap)'
complete -c stockade -n "__fish_stockade_using_subcommand shell" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand start" -l name -d 'Name of the sandbox: lower-case letters, digits and hyphens; made up when left out' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l pool -d 'Keep N sandboxes ready, each for one command' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l successor -d 'Of which pool another sandbox is started, by its id' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l project -d 'Project directory; otherwise the nearest one upwards with a stockade.toml, else with a .git, else the current directory' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand start" -l wall -d 'The wall: `process`, `container` with limits that the kernel counts exactly, `gvisor` or `microvm` with a kernel of its own besides; after `at-least:` the cheapest from there on that holds everything. The strongest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l image -d 'Run on an imported image instead of the host\'s system directories (`stockade image`; needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l runtime -d 'Have an installed OCI runtime make the container: `runc` or `crun` (needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l accept-runtime -d 'Use exactly this version of it, whatever is known against its number' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l accelerator -d 'What executes a machine: `kvm` or `tcg` (needs the wall `microvm`); without it KVM, where a trial shows that it works' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l preset -d 'Start from a named preset' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l read -d 'Also let it read PATH, or the set `toolchains`' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l write -d 'Also let it write PATH' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l workspace -d 'How writes reach the project: `live` (directly), `review` (into a layer that you apply afterwards) or `discard`; the strictest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l hide -d 'Hide what matches GLOB below the granted directories' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l allow -d 'Also let it reach HOST: `host`, `*.host`, `**.host`, with `:port` where it is not 443 or 80' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l publish -d 'Make a port of a server inside reachable on this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l host-port -d 'Let it reach a port of this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l env -d 'Let the variable NAME (or PREFIX_*) in; NAME=VALUE sets it' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l memory -d 'Most memory, for example 2GiB or 50%' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l processes -d 'Most processes and threads' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l cpus -d 'Most processors, for example 1.5' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l open-files -d 'Most open files of each process' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l wall-time -d 'End the run after this long, for example 10m (exit code 124)' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l disk -d 'Most bytes in the private directories (/tmp, home, …)' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -s C -l directory -d 'Where commands run unless they say otherwise; it must lie in the project' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand start" -l fail-step -d 'Test aid: make the named step fail, to see that nothing runs' -r
complete -c stockade -n "__fish_stockade_using_subcommand start" -l nested-sandbox -d 'Let tools inside make their own sandbox (Chromium, bubblewrap)'
complete -c stockade -n "__fish_stockade_using_subcommand start" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand start" -s q -l quiet -d 'Say nothing on standard error but refusals'
complete -c stockade -n "__fish_stockade_using_subcommand start" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand copy" -l max-bytes -d 'Stop when what comes out is more than this' -r
complete -c stockade -n "__fish_stockade_using_subcommand copy" -l held -d 'Also names that are held when a run writes them'
complete -c stockade -n "__fish_stockade_using_subcommand copy" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand copy" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand cp" -l max-bytes -d 'Stop when what comes out is more than this' -r
complete -c stockade -n "__fish_stockade_using_subcommand cp" -l held -d 'Also names that are held when a run writes them'
complete -c stockade -n "__fish_stockade_using_subcommand cp" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand cp" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand exec" -l env -d 'Set a variable for this command' -r
complete -c stockade -n "__fish_stockade_using_subcommand exec" -l cwd -d 'Run in DIR, a path inside; else where the sandbox was started' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand exec" -s t -l tty -d 'On a terminal of its own, as for a shell'
complete -c stockade -n "__fish_stockade_using_subcommand exec" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand list" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand list" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand stop" -l all -d 'Every sandbox and pool of yours'
complete -c stockade -n "__fish_stockade_using_subcommand stop" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand stop" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l project -d 'Project directory; otherwise the nearest one upwards with a stockade.toml, else with a .git, else the current directory' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l wall -d 'The wall: `process`, `container` with limits that the kernel counts exactly, `gvisor` or `microvm` with a kernel of its own besides; after `at-least:` the cheapest from there on that holds everything. The strongest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l image -d 'Run on an imported image instead of the host\'s system directories (`stockade image`; needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l runtime -d 'Have an installed OCI runtime make the container: `runc` or `crun` (needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l accept-runtime -d 'Use exactly this version of it, whatever is known against its number' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l accelerator -d 'What executes a machine: `kvm` or `tcg` (needs the wall `microvm`); without it KVM, where a trial shows that it works' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l preset -d 'Start from a named preset' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l read -d 'Also let it read PATH, or the set `toolchains`' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l write -d 'Also let it write PATH' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l workspace -d 'How writes reach the project: `live` (directly), `review` (into a layer that you apply afterwards) or `discard`; the strictest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l hide -d 'Hide what matches GLOB below the granted directories' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l allow -d 'Also let it reach HOST: `host`, `*.host`, `**.host`, with `:port` where it is not 443 or 80' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l publish -d 'Make a port of a server inside reachable on this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l host-port -d 'Let it reach a port of this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l env -d 'Let the variable NAME (or PREFIX_*) in; NAME=VALUE sets it' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l memory -d 'Most memory, for example 2GiB or 50%' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l processes -d 'Most processes and threads' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l cpus -d 'Most processors, for example 1.5' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l open-files -d 'Most open files of each process' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l wall-time -d 'End the run after this long, for example 10m (exit code 124)' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l disk -d 'Most bytes in the private directories (/tmp, home, …)' -r
complete -c stockade -n "__fish_stockade_using_subcommand explain" -s C -l directory -d 'Run in DIR, which must lie in the project' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l nested-sandbox -d 'Let tools inside make their own sandbox (Chromium, bubblewrap)'
complete -c stockade -n "__fish_stockade_using_subcommand explain" -l json -d 'Print the plan as JSON'
complete -c stockade -n "__fish_stockade_using_subcommand explain" -s v -l verbose -d 'Also every system call rule and every step'
complete -c stockade -n "__fish_stockade_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand test" -l project -d 'Project directory; otherwise the nearest one upwards with a stockade.toml, else with a .git, else the current directory' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand test" -l wall -d 'The wall: `process`, `container` with limits that the kernel counts exactly, `gvisor` or `microvm` with a kernel of its own besides; after `at-least:` the cheapest from there on that holds everything. The strongest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l image -d 'Run on an imported image instead of the host\'s system directories (`stockade image`; needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l runtime -d 'Have an installed OCI runtime make the container: `runc` or `crun` (needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l accept-runtime -d 'Use exactly this version of it, whatever is known against its number' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l accelerator -d 'What executes a machine: `kvm` or `tcg` (needs the wall `microvm`); without it KVM, where a trial shows that it works' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l preset -d 'Start from a named preset' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l read -d 'Also let it read PATH, or the set `toolchains`' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l write -d 'Also let it write PATH' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l workspace -d 'How writes reach the project: `live` (directly), `review` (into a layer that you apply afterwards) or `discard`; the strictest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l hide -d 'Hide what matches GLOB below the granted directories' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l allow -d 'Also let it reach HOST: `host`, `*.host`, `**.host`, with `:port` where it is not 443 or 80' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l publish -d 'Make a port of a server inside reachable on this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l host-port -d 'Let it reach a port of this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l env -d 'Let the variable NAME (or PREFIX_*) in; NAME=VALUE sets it' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l memory -d 'Most memory, for example 2GiB or 50%' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l processes -d 'Most processes and threads' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l cpus -d 'Most processors, for example 1.5' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l open-files -d 'Most open files of each process' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l wall-time -d 'End the run after this long, for example 10m (exit code 124)' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l disk -d 'Most bytes in the private directories (/tmp, home, …)' -r
complete -c stockade -n "__fish_stockade_using_subcommand test" -l nested-sandbox -d 'Let tools inside make their own sandbox (Chromium, bubblewrap)'
complete -c stockade -n "__fish_stockade_using_subcommand test" -l json -d 'Print the answer as JSON'
complete -c stockade -n "__fish_stockade_using_subcommand test" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand diff" -l project -d 'Project directory; otherwise found as by `stockade run`' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand diff" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand diff" -l stat -d 'One line for each path, without the text'
complete -c stockade -n "__fish_stockade_using_subcommand diff" -l list -d 'List the runs that wait'
complete -c stockade -n "__fish_stockade_using_subcommand diff" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand apply" -l project -d 'Project directory; otherwise found as by `stockade run`' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand apply" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand apply" -l held -d 'Also what is held'
complete -c stockade -n "__fish_stockade_using_subcommand apply" -l all-but-held -d 'All but what is held (the default)'
complete -c stockade -n "__fish_stockade_using_subcommand apply" -l skip-conflicts -d 'Apply the rest when some paths changed underneath'
complete -c stockade -n "__fish_stockade_using_subcommand apply" -l incomplete -d 'Also a run of which a crash of the machine may have lost a part'
complete -c stockade -n "__fish_stockade_using_subcommand apply" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand discard" -l project -d 'Project directory; otherwise found as by `stockade run`' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand discard" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand discard" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand snapshot" -l project -d 'Project directory; otherwise found as by `stockade run`' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand snapshot" -l of -d 'The waiting run to remember; it goes on on top' -r
complete -c stockade -n "__fish_stockade_using_subcommand snapshot" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand snapshot" -l list -d 'List the snapshots'
complete -c stockade -n "__fish_stockade_using_subcommand snapshot" -l delete -d 'Remove the snapshot'
complete -c stockade -n "__fish_stockade_using_subcommand snapshot" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand fork" -l project -d 'Project directory; otherwise found as by `stockade run`' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand fork" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand fork" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand restore" -l project -d 'Project directory; otherwise found as by `stockade run`' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand restore" -l in -d 'Reset this fork instead of the project' -r
complete -c stockade -n "__fish_stockade_using_subcommand restore" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand restore" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand doctor" -l wall -d 'Attack the command behind this wall: `process`, `container`, `gvisor` or `microvm`' -r
complete -c stockade -n "__fish_stockade_using_subcommand doctor" -l runtime -d 'With the wall `container`: made by this OCI runtime, `runc` or `crun`' -r
complete -c stockade -n "__fish_stockade_using_subcommand doctor" -l accept-runtime -d 'An OCI runtime of exactly this version, whatever is known against its number' -r
complete -c stockade -n "__fish_stockade_using_subcommand doctor" -l attack -d 'Run hostile programs inside and show which of them were stopped'
complete -c stockade -n "__fish_stockade_using_subcommand doctor" -l all-walls -d 'Attack behind every wall, and print which guarantee each of them holds'
complete -c stockade -n "__fish_stockade_using_subcommand doctor" -l json -d 'Print the findings as JSON'
complete -c stockade -n "__fish_stockade_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand init" -l preset -d 'Start from a preset: default, build, read-only, ci or strict' -r
complete -c stockade -n "__fish_stockade_using_subcommand init" -l print -d 'Print it instead of writing a file'
complete -c stockade -n "__fish_stockade_using_subcommand init" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand trust" -s y -l yes -d 'Do not ask'
complete -c stockade -n "__fish_stockade_using_subcommand trust" -l list -d 'List the trusted files'
complete -c stockade -n "__fish_stockade_using_subcommand trust" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand untrust" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l project -d 'Project directory; otherwise the nearest one upwards with a stockade.toml, else with a .git, else the current directory' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l wall -d 'The wall: `process`, `container` with limits that the kernel counts exactly, `gvisor` or `microvm` with a kernel of its own besides; after `at-least:` the cheapest from there on that holds everything. The strongest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l image -d 'Run on an imported image instead of the host\'s system directories (`stockade image`; needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l runtime -d 'Have an installed OCI runtime make the container: `runc` or `crun` (needs the wall `container`)' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l accept-runtime -d 'Use exactly this version of it, whatever is known against its number' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l accelerator -d 'What executes a machine: `kvm` or `tcg` (needs the wall `microvm`); without it KVM, where a trial shows that it works' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l preset -d 'Start from a named preset' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l read -d 'Also let it read PATH, or the set `toolchains`' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l write -d 'Also let it write PATH' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l workspace -d 'How writes reach the project: `live` (directly), `review` (into a layer that you apply afterwards) or `discard`; the strictest of all files and options wins' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l hide -d 'Hide what matches GLOB below the granted directories' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l allow -d 'Also let it reach HOST: `host`, `*.host`, `**.host`, with `:port` where it is not 443 or 80' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l publish -d 'Make a port of a server inside reachable on this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l host-port -d 'Let it reach a port of this machine\'s loopback' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l env -d 'Let the variable NAME (or PREFIX_*) in; NAME=VALUE sets it' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l memory -d 'Most memory, for example 2GiB or 50%' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l processes -d 'Most processes and threads' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l cpus -d 'Most processors, for example 1.5' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l open-files -d 'Most open files of each process' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l wall-time -d 'End the run after this long, for example 10m (exit code 124)' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l disk -d 'Most bytes in the private directories (/tmp, home, …)' -r
complete -c stockade -n "__fish_stockade_using_subcommand learn" -s C -l directory -d 'Run in DIR, which must lie in the project' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l output -d 'Write the policy to FILE instead of standard output' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l nested-sandbox -d 'Let tools inside make their own sandbox (Chromium, bubblewrap)'
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l ask -d 'Ask about each new host instead of allowing it'
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l requests -d 'Also inspect what is asked of each new host, and print its requests'
complete -c stockade -n "__fish_stockade_using_subcommand learn" -l json -d 'Print it as JSON'
complete -c stockade -n "__fish_stockade_using_subcommand learn" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and not __fish_seen_subcommand_from list allow show deny help" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and not __fish_seen_subcommand_from list allow show deny help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and not __fish_seen_subcommand_from list allow show deny help" -f -a "list" -d 'Show what is waiting for an answer'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and not __fish_seen_subcommand_from list allow show deny help" -f -a "allow" -d 'Let a waiting request through'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and not __fish_seen_subcommand_from list allow show deny help" -f -a "show" -d 'Show what is held of what a run wrote'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and not __fish_seen_subcommand_from list allow show deny help" -f -a "deny" -d 'Refuse a waiting request, and all later ones to it in this run'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and not __fish_seen_subcommand_from list allow show deny help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from allow" -l for -d 'How long the rule of --always holds, at most a year' -r
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from allow" -l run -d 'Also later requests to this destination, until the run ends'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from allow" -l always -d 'In every run: written to your own policy file, with expiry'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from allow" -l force -d 'Put a held file in place although the one in the project changed'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from allow" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from allow" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from show" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from deny" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from deny" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show what is waiting for an answer'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from help" -f -a "allow" -d 'Let a waiting request through'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from help" -f -a "show" -d 'Show what is held of what a run wrote'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from help" -f -a "deny" -d 'Refuse a waiting request, and all later ones to it in this run'
complete -c stockade -n "__fish_stockade_using_subcommand approvals; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand reload" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand reload" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand log" -l run -d 'Only records of the run whose id starts so' -r
complete -c stockade -n "__fish_stockade_using_subcommand log" -s n -d 'Only the last N records' -r
complete -c stockade -n "__fish_stockade_using_subcommand log" -l anchor -d 'A head printed earlier, which must still be in the log' -r
complete -c stockade -n "__fish_stockade_using_subcommand log" -l json -d 'Print each record as one line of JSON, as it is stored'
complete -c stockade -n "__fish_stockade_using_subcommand log" -s f -l follow -d 'Go on with records as they are added, until interrupted'
complete -c stockade -n "__fish_stockade_using_subcommand log" -l network -d 'Only what the network was used for: decisions, ends of connections, credentials, alerts, approvals'
complete -c stockade -n "__fish_stockade_using_subcommand log" -l verify -d 'Check that no line was changed, removed or moved, and print the head'
complete -c stockade -n "__fish_stockade_using_subcommand log" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and not __fish_seen_subcommand_from set list remove help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and not __fish_seen_subcommand_from set list remove help" -f -a "set" -d 'Store a secret, in place of what had its name'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and not __fish_seen_subcommand_from set list remove help" -f -a "list" -d 'List what is stored: names, never values'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and not __fish_seen_subcommand_from set list remove help" -f -a "remove" -d 'Forget a secret'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and not __fish_seen_subcommand_from set list remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and __fish_seen_subcommand_from set" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and __fish_seen_subcommand_from list" -l json -d 'One JSON array'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and __fish_seen_subcommand_from help" -f -a "set" -d 'Store a secret, in place of what had its name'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and __fish_seen_subcommand_from help" -f -a "list" -d 'List what is stored: names, never values'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Forget a secret'
complete -c stockade -n "__fish_stockade_using_subcommand secret; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and not __fish_seen_subcommand_from list clear trim help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and not __fish_seen_subcommand_from list clear trim help" -f -a "list" -d 'Show what the caches of each project hold'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and not __fish_seen_subcommand_from list clear trim help" -f -a "clear" -d 'Empty caches of this project'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and not __fish_seen_subcommand_from list clear trim help" -f -a "trim" -d 'Take away what is too much; started when a run has ended'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and not __fish_seen_subcommand_from list clear trim help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from clear" -l project -d 'The project directory; found from the current directory otherwise' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from clear" -l all -d 'Those of every project'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from clear" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from clear" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from trim" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show what the caches of each project hold'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "clear" -d 'Empty caches of this project'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "trim" -d 'Take away what is too much; started when a run has ended'
complete -c stockade -n "__fish_stockade_using_subcommand cache; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand image; and not __fish_seen_subcommand_from import list remove help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand image; and not __fish_seen_subcommand_from import list remove help" -f -a "import" -d 'Bring an image from an OCI layout or an archive of one'
complete -c stockade -n "__fish_stockade_using_subcommand image; and not __fish_seen_subcommand_from import list remove help" -f -a "list" -d 'Show the images that there are'
complete -c stockade -n "__fish_stockade_using_subcommand image; and not __fish_seen_subcommand_from import list remove help" -f -a "remove" -d 'Take a name away, and the image with its last name'
complete -c stockade -n "__fish_stockade_using_subcommand image; and not __fish_seen_subcommand_from import list remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from import" -l reference -d 'Which of several images in it, by the name it was exported under' -r
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from import" -l max-bytes -d 'Most bytes once unpacked' -r
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from import" -l max-files -d 'Most files once unpacked' -r
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from import" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from import" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "import" -d 'Bring an image from an OCI layout or an archive of one'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show the images that there are'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Take a name away, and the image with its last name'
complete -c stockade -n "__fish_stockade_using_subcommand image; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and not __fish_seen_subcommand_from build list remove help" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and not __fish_seen_subcommand_from build list remove help" -f -a "build" -d 'Build an image, in place of one of the same name'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and not __fish_seen_subcommand_from build list remove help" -f -a "list" -d 'Show the images that there are, and the machines that were saved of them'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and not __fish_seen_subcommand_from build list remove help" -f -a "remove" -d 'Remove images that no sandbox uses'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and not __fish_seen_subcommand_from build list remove help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from build" -l kernel-package -d 'Take the kernel from this package' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from build" -l kernel -d 'Take this kernel (`vmlinuz`)' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from build" -l modules -d 'The directory of its modules (`/lib/modules/RELEASE`)' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from build" -l name -d 'What to call it; `run` uses `default`' -r
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from build" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from build" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from list" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from remove" -l saved -d 'Only the machines that were saved of them: the next run boots again'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from remove" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from help" -f -a "build" -d 'Build an image, in place of one of the same name'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from help" -f -a "list" -d 'Show the images that there are, and the machines that were saved of them'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Remove images that no sandbox uses'
complete -c stockade -n "__fish_stockade_using_subcommand vm; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand gc" -l dry-run -d 'Only list what would be removed'
complete -c stockade -n "__fish_stockade_using_subcommand gc" -l json -d 'Print JSON'
complete -c stockade -n "__fish_stockade_using_subcommand gc" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand completions" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand man" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand schema" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stockade -n "__fish_stockade_using_subcommand tend" -l project -d 'The project directory' -r -F
complete -c stockade -n "__fish_stockade_using_subcommand tend" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand egress" -s h -l help -d 'Print help'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "run" -d 'Run a command in a fresh sandbox'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "shell" -d 'Open a shell in a fresh sandbox'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "start" -d 'Start a sandbox that stays, for many commands'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "copy" -d 'Copy files into a sandbox that stays, or out of it'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "exec" -d 'Run a command in a sandbox that stays'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "list" -d 'Show the sandboxes that stay'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "stop" -d 'End sandboxes that stay'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "explain" -d 'Show what a command could read, write, execute and reach'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "test" -d 'Ask whether something is allowed, and by which rule'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "diff" -d 'Show what a run in review mode changed'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "apply" -d 'Bring what a run in review mode changed into the project'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "discard" -d 'Drop what a run in review mode changed'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "snapshot" -d 'Remember the project, or what a waiting run shows of it'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "fork" -d 'Make a waiting run that begins with a snapshot'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "restore" -d 'Give the project, or a fork, back as a snapshot saw it'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "doctor" -d 'Show what this machine can hold, and what to do about the rest'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "init" -d 'Write a commented stockade.toml'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "trust" -d 'Let the project\'s stockade.toml widen what its runs may do'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "untrust" -d 'Take the trust in a project\'s stockade.toml back'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "learn" -d 'Run a command and print the network policy that it needs'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "approvals" -d 'Show and answer what commands want to reach, and what is held of what they wrote'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "reload" -d 'Give running commands the network rules as the files say them now'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "log" -d 'Show what runs did, which rule spoke, and whether the log is intact'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "secret" -d 'Keep secrets for credentials, outside every sandbox'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "cache" -d 'Show or clear the caches that runs keep for each project'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "image" -d 'Import, list and remove images for the container wall'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "vm" -d 'Build, list and remove machine images for the microVM wall'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "gc" -d 'Clear away what killed processes left behind'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "completions" -d 'Print completions for a shell'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "man" -d 'Print the manual page'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "schema" -d 'Print the JSON Schema of stockade.toml'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "attack-inside" -d 'Run one attack of the corpus, inside a sandbox'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "tend" -d 'Keep the layers of a project in order; started by what makes it due'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "egress" -d 'Carry the connections of one sandbox; started by `stockade run`'
complete -c stockade -n "__fish_stockade_using_subcommand help; and not __fish_seen_subcommand_from run shell start copy exec list stop explain test diff apply discard snapshot fork restore doctor init trust untrust learn approvals reload log secret cache image vm gc completions man schema attack-inside tend egress help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from approvals" -f -a "list" -d 'Show what is waiting for an answer'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from approvals" -f -a "allow" -d 'Let a waiting request through'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from approvals" -f -a "show" -d 'Show what is held of what a run wrote'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from approvals" -f -a "deny" -d 'Refuse a waiting request, and all later ones to it in this run'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from secret" -f -a "set" -d 'Store a secret, in place of what had its name'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from secret" -f -a "list" -d 'List what is stored: names, never values'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from secret" -f -a "remove" -d 'Forget a secret'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "list" -d 'Show what the caches of each project hold'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "clear" -d 'Empty caches of this project'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from cache" -f -a "trim" -d 'Take away what is too much; started when a run has ended'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "import" -d 'Bring an image from an OCI layout or an archive of one'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "list" -d 'Show the images that there are'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from image" -f -a "remove" -d 'Take a name away, and the image with its last name'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from vm" -f -a "build" -d 'Build an image, in place of one of the same name'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from vm" -f -a "list" -d 'Show the images that there are, and the machines that were saved of them'
complete -c stockade -n "__fish_stockade_using_subcommand help; and __fish_seen_subcommand_from vm" -f -a "remove" -d 'Remove images that no sandbox uses'
