"""Does everything that can be done to a name, and prints what came of it.

The same script runs outside and inside; its output must be the same.
"""
import ctypes
import errno
import fcntl
import os
import stat
import sys
import threading

libc = ctypes.CDLL(None, use_errno=True)


def show(label, action):
    try:
        result = action()
    except OSError as error:
        result = errno.errorcode.get(error.errno, error.errno)
    if callable(getattr(result, "close", None)):
        result = "file"
    print(label, "->", result)


def write(path, text="x", flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o666):
    fd = os.open(path, flags, mode)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
    return oct(stat.S_IMODE(os.lstat(path).st_mode))


def read(path):
    with open(path) as file:
        return file.read()


def bare(path, flags, mode=0o666):
    fd = os.open(path, flags, mode)
    got = fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK)
    cloexec = fcntl.fcntl(fd, fcntl.F_GETFD)
    os.close(fd)
    return got, cloexec


def create_and_modes():
    for mask in (0o022, 0o077, 0o000, 0o027):
        os.umask(mask)
        show(f"create umask {mask:o}", lambda: write(f"u{mask:o}"))
        show(f"create 0600 umask {mask:o}", lambda: write(f"v{mask:o}", mode=0o600))
        os.mkdir(f"d{mask:o}")
        show("mkdir mode", lambda: oct(os.stat(f"d{mask:o}").st_mode))
        os.mkdir(f"e{mask:o}", 0o2775)
        show("mkdir 2775", lambda: oct(os.stat(f"e{mask:o}").st_mode))
        os.mkfifo(f"p{mask:o}")
        show("fifo", lambda: oct(os.stat(f"p{mask:o}").st_mode))
    os.umask(0o022)


def opening():
    os.mkdir("dir")
    write("file", "content")
    os.symlink("file", "link")
    os.symlink("new-by-link", "dangling")
    os.symlink("loop-b", "loop-a")
    os.symlink("loop-a", "loop-b")
    os.symlink("dir", "dirlink")
    C, X, T = os.O_CREAT, os.O_EXCL, os.O_TRUNC
    W, RW, A = os.O_WRONLY, os.O_RDWR, os.O_APPEND
    for name in ("file", "link", "dangling", "loop-a", "dir", "dirlink", "missing", "dir/new",
                 "file/new", "missing/new", "dir/", "file/", "new/", ".", "..", "",
                 "dirlink/through", "x" * 255, "x" * 256, "dir/./dot", "dir/../up", "//" ):
        for flags in (W, RW, W | C, W | C | X, RW | C, W | T, W | A, W | C | os.O_NOFOLLOW,
                      W | os.O_DIRECTORY, RW | C | os.O_CLOEXEC, os.O_RDONLY | C, os.O_RDONLY | T,
                      W | C | os.O_NONBLOCK):
            show(f"open {name[:12]!r} {flags:o}", lambda: bare(name, flags))
        for fresh in ("missing", "dir/new", "new-by-link", "dir/through", "dir/dot", "up", "x" * 255):
            if os.path.lexists(fresh):
                os.remove(fresh)
        write("file", "content")
    show("content", lambda: read("file"))
    show("absolute", lambda: write(os.path.abspath("dir/absolute")))
    show("append", lambda: (write("dir/absolute", "y", W | A), read("dir/absolute"))[1])
    show("fault", lambda: libc.open(ctypes.c_void_p(1), W | C, 0o600))
    show("errno", lambda: errno.errorcode[ctypes.get_errno()])
    show("descriptor", lambda: (write("d1"), os.close(os.open("/dev/null", W)))[0])


def directories():
    show("mkdir twice", lambda: os.mkdir("dir"))
    show("mkdir slash", lambda: os.mkdir("slash/"))
    show("mkdir below file", lambda: os.mkdir("file/x"))
    show("mkdir below missing", lambda: os.mkdir("gone/x"))
    show("mkdir dot", lambda: os.mkdir("."))
    show("mkdir link", lambda: os.mkdir("dangling"))
    show("mkdir where a file is", lambda: os.mkdir("file"))
    show("rmdir full", lambda: os.rmdir("dir"))
    show("rmdir", lambda: os.rmdir("slash/"))
    show("rmdir file", lambda: os.rmdir("file"))
    show("rmdir dot", lambda: os.rmdir("."))
    show("rmdir missing", lambda: os.rmdir("gone"))
    fd = os.open("dir", os.O_RDONLY | os.O_DIRECTORY)
    os.mkdir("sub", dir_fd=fd)
    show("openat", lambda: os.close(os.open("sub/f", os.O_WRONLY | os.O_CREAT, dir_fd=fd)))
    show("renameat", lambda: os.rename("sub/f", "sub/g", src_dir_fd=fd, dst_dir_fd=fd))
    show("unlinkat", lambda: os.unlink("sub/g", dir_fd=fd))
    show("rmdirat", lambda: os.rmdir("sub", dir_fd=fd))
    show("symlinkat", lambda: os.symlink("t", "s", dir_fd=fd))
    show("readlinkat", lambda: os.readlink("s", dir_fd=fd))
    os.close(fd)
    show("bad descriptor", lambda: os.open("x", os.O_WRONLY | os.O_CREAT, dir_fd=999))
    here = os.getcwd()
    os.mkdir("vanishing")
    os.chdir("vanishing")
    os.rmdir("../vanishing")
    show("create in a removed directory", lambda: write("x"))
    os.chdir(here)


def names():
    write("a", "a")
    write("b", "b")
    show("rename over", lambda: (os.rename("a", "b"), read("b"))[1])
    show("rename missing", lambda: os.rename("a", "c"))
    os.mkdir("full")
    write("full/x")
    os.mkdir("empty")
    show("rename dir over full", lambda: os.rename("empty", "full"))
    show("rename full over empty", lambda: os.rename("full", "empty"))
    show("kept", lambda: sorted(os.listdir("empty")))
    show("rename file over dir", lambda: os.rename("b", "empty"))
    show("rename dir over file", lambda: os.rename("empty", "b"))
    show("rename into itself", lambda: os.rename("empty", "empty/y"))
    show("rename slash", lambda: os.rename("empty/", "emptied/"))
    show("rename file slash", lambda: os.rename("b", "c/"))
    show("rename between directories", lambda: os.rename("b", "emptied/b"))
    os.symlink("emptied", "to")
    show("rename link", lambda: (os.rename("to", "to2"), os.readlink("to2"))[1])
    show("link", lambda: (os.link("emptied/b", "hard"), os.stat("hard").st_nlink)[1])
    show("link twice", lambda: os.link("emptied/b", "hard"))
    show("link directory", lambda: os.link("emptied", "hard2"))
    show("link of link", lambda: (os.link("to2", "l2", follow_symlinks=False), os.readlink("l2"))[1])
    show("link missing", lambda: os.link("gone", "hard3"))
    show("link out", lambda: os.link("hard", f"/dev/shm/out-{os.getpid()}"))
    show("rename out", lambda: os.rename("hard", f"/dev/shm/out-{os.getpid()}"))
    show("rename to dev", lambda: os.rename("hard", "/dev/null/x"))
    show("symlink twice", lambda: os.symlink("z", "to2"))
    show("unlink directory", lambda: os.unlink("emptied"))
    show("unlink missing", lambda: os.unlink("gone"))
    show("unlink link", lambda: (os.unlink("to2"), os.path.isdir("emptied"))[1])
    show("truncate", lambda: (os.truncate("hard", 3), os.stat("hard").st_size)[1])
    show("truncate missing", lambda: os.truncate("gone", 3))
    show("truncate directory", lambda: os.truncate("emptied", 3))
    show("mknod file", lambda: (os.mknod("node"), oct(os.stat("node").st_mode))[1])
    show("noreplace", lambda: renameat2("hard", "node", 1))
    show("exchange", lambda: (renameat2("hard", "node", 2), os.stat("node").st_size)[1])
    odd = b"\xff\xfe odd\n'name"
    show("odd", lambda: (os.close(os.open(odd, os.O_WRONLY | os.O_CREAT)), odd in os.listdir(b"."))[1])


def renameat2(old, new, flags):
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags) < 0:
        raise OSError(ctypes.get_errno(), "")
    return 0


def unnamed():
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"unnamed")
    show("name of an unnamed file", lambda: (
        libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"named", 0x400), read("named"))[1])
    show("its mode", lambda: oct(os.stat("named").st_mode))
    os.close(fd)
    show("standard streams", lambda: os.close(os.open("/dev/stderr", os.O_WRONLY | os.O_APPEND)))
    fd = os.open("named", os.O_RDONLY)
    show("open again for writing", lambda: os.close(os.open(f"/dev/fd/{fd}", os.O_RDWR)))
    os.close(fd)


def others():
    os.mkfifo("pipe")
    got = []
    reader = threading.Thread(target=lambda: got.append(read("pipe")))
    reader.start()
    with open("pipe", "w") as pipe:
        pipe.write("through the pipe")
    reader.join()
    show("pipe", lambda: got[0])
    show("pipe without reader", lambda: os.open("pipe", os.O_WRONLY | os.O_NONBLOCK))
    write("locked")
    with open("locked", "r+") as one:
        fcntl.lockf(one, fcntl.LOCK_EX)
        fcntl.flock(one, fcntl.LOCK_EX)
        show("lock", lambda: "held")
    for number in range(50):
        write("program", "#!/bin/sh\nexit 7\n", mode=0o755)
        os.chmod("program", 0o755)
        child = os.spawnv(os.P_WAIT, "./program", ["program"])
        if child != 7:
            print("a written program answered", child)
        os.unlink("program")
    # One umask for all threads of a process, whichever sets it and makes something.
    for mask in (0o077, 0o002, 0o022):
        setter = threading.Thread(target=os.umask, args=(mask,))
        setter.start()
        setter.join()
        maker = threading.Thread(target=write, args=(f"thread{mask:o}",))
        maker.start()
        maker.join()
        write(f"main{mask:o}")
    errors = []

    def churn(number):
        try:
            for turn in range(100):
                name = f"churn/{number}-{turn}"
                write(name)
                os.rename(name, name + "r")
                os.unlink(name + "r")
        except OSError as error:
            errors.append(error)

    os.mkdir("churn")
    threads = [threading.Thread(target=churn, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    show("threads", lambda: (errors, os.listdir("churn")))


base = sys.argv[1]
os.mkdir(base)
os.chdir(base)
for part in (create_and_modes, opening, directories, names, unnamed, others):
    part()
for path, directories_, files in sorted(os.walk(".")):
    for name in sorted(directories_ + files):
        status = os.lstat(os.path.join(path, name))
        print(path, name.encode(errors="surrogateescape"), oct(status.st_mode), status.st_nlink)
