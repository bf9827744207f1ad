# The helper, which runs in the address space of the emulated program and moves pages (see mod.rs).
# No stack, no calls, no relocations: it uses only registers and the control area, so that it is position-independent.
# rbx: control area; rbp: the address bit of parking addresses; r12, r13: head and tail of the queue of faults; r14: polls
# without a message; r15: the current page. System calls clobber rax, rcx and r11.

    .pushsection .rodata.thermocline_helper, "a", @progbits
    # The code that references these symbols may be in another object.
    .globl thermocline_helper_start
    .hidden thermocline_helper_start
    .globl thermocline_helper_end
    .hidden thermocline_helper_end
    .balign 16
thermocline_helper_start:
    # The traced program calls clone(2) here: the parent stops at the trap, the child starts working.
    syscall
    test rax, rax
    jz .Lbegin
    int3

.Lbegin:
    xor r12d, r12d
    xor r13d, r13d
    xor r14d, r14d
    mov rbp, [rbx + {PARKING}]

.Lmain:
    cmp qword ptr [rbx + {EVENT}], 0
    jne .Lawait_master
    cmp qword ptr [rbx + {COMMAND}], 0
    jne .Lrun
    cmp r12, r13
    je .Lread
    # The oldest fault is resolved when it is due.
    rdtsc
    shl rdx, 32
    or rax, rdx
    mov ecx, r12d
    and ecx, {QUEUE_MASK}
    shl ecx, 4
    cmp rax, [rbx + rcx + {QUEUE} + 8]
    jae .Lresolve

.Lread:
    mov rax, r13
    sub rax, r12
    cmp rax, {QUEUE_MASK}
    jae .Lmain
    xor eax, eax
    mov edi, [rbx + {UFFD}]
    lea rsi, [rbx + {MESSAGE}]
    mov edx, 32
    syscall
    cmp rax, 32
    jne .Lnothing
    xor r14d, r14d
    cmp byte ptr [rbx + {MESSAGE}], {PAGEFAULT}
    jne .Lraise
    mov ecx, r13d
    and ecx, {QUEUE_MASK}
    shl ecx, 4
    mov rsi, [rbx + {MESSAGE} + 16]
    and rsi, -4096
    mov [rbx + rcx + {QUEUE}], rsi
    rdtsc
    shl rdx, 32
    or rax, rdx
    add rax, [rbx + {DELAY}]
    mov [rbx + rcx + {QUEUE} + 8], rax
    inc r13
    jmp .Lmain

.Lnothing:
    pause
    cmp r12, r13
    jne .Lmain
    inc r14
    cmp r14, [rbx + {POLLS}]
    jb .Lmain
    xor r14d, r14d
    mov eax, {SYS_POLL}
    lea rdi, [rbx + {POLL}]
    mov esi, 3
    mov rdx, -1
    syscall
    # The program has exited.
    cmp word ptr [rbx + {POLL} + 16 + 6], 0
    jne .Lend
    xor eax, eax
    mov edi, [rbx + {WAKE}]
    lea rsi, [rbx + {SCRATCH}]
    mov edx, 8
    syscall
    jmp .Lmain

.Lend:
    mov eax, {SYS_EXIT_GROUP}
    xor edi, edi
    syscall
    ud2

.Lresolve:
    mov ecx, r12d
    and ecx, {QUEUE_MASK}
    shl ecx, 4
    mov r15, [rbx + rcx + {QUEUE}]
    # Move the page back from its parking address; this also wakes the waiting threads.
    mov [rbx + {ARGUMENT}], r15
    mov rax, r15
    xor rax, rbp
    mov [rbx + {ARGUMENT} + 8], rax
    mov qword ptr [rbx + {ARGUMENT} + 16], 4096
    mov qword ptr [rbx + {ARGUMENT} + 24], 0
    mov eax, {SYS_IOCTL}
    mov edi, [rbx + {UFFD}]
    mov esi, {UFFDIO_MOVE}
    lea rdx, [rbx + {ARGUMENT}]
    syscall
    test eax, eax
    jz .Lmoved
    # The address space is about to change: the message about that has to be read first.
    cmp eax, -{EAGAIN}
    je .Lread
    cmp eax, -{ENOENT}
    je .Lfirst
    cmp eax, -{EEXIST}
    je .Lwake
.Lask:
    # The emulator has to handle this fault.
    inc r12
    mov [rbx + {MESSAGE} + 16], r15
    mov byte ptr [rbx + {MESSAGE}], {UNRESOLVED}
    jmp .Lraise

.Lfirst:
    # First access: map a page of zeroes, as the kernel does.
    mov [rbx + {ARGUMENT}], r15
    mov qword ptr [rbx + {ARGUMENT} + 8], 4096
    mov qword ptr [rbx + {ARGUMENT} + 16], 0
    mov eax, {SYS_IOCTL}
    mov edi, [rbx + {UFFD}]
    mov esi, {UFFDIO_ZEROPAGE}
    lea rdx, [rbx + {ARGUMENT}]
    syscall
    cmp eax, -{EAGAIN}
    je .Lread
    test eax, eax
    jnz .Lwake
    inc qword ptr [rbx + {FIRST}]
    inc r12
    jmp .Lmain

.Lwake:
    # Another fault has restored the page, or it is no longer mapped: let the thread retry.
    mov [rbx + {ARGUMENT}], r15
    mov qword ptr [rbx + {ARGUMENT} + 8], 4096
    mov eax, {SYS_IOCTL}
    mov edi, [rbx + {UFFD}]
    mov esi, {UFFDIO_WAKE}
    lea rdx, [rbx + {ARGUMENT}]
    syscall
    inc r12
    jmp .Lmain

.Lmoved:
    mov ecx, r12d
    and ecx, {QUEUE_MASK}
    shl ecx, 4
    rdtsc
    shl rdx, 32
    or rax, rdx
    sub rax, [rbx + rcx + {QUEUE} + 8]
    add rax, [rbx + {DELAY}]
    add [rbx + {SERVED}], rax
    inc r12
    mov rax, [rbx + {ACCESSES}]
    mov ecx, eax
    and ecx, {LOG_MASK}
    mov [rbx + rcx * 8 + {LOG}], r15
    inc rax
    mov [rbx + {ACCESSES}], rax
    # The oldest open page is parked again; the emulator has set the entry to 0 if it must not be.
    sub rax, [rbx + {OPEN}]
    jbe .Lmain
    dec eax
    and eax, {LOG_MASK}
    mov rsi, [rbx + rax * 8 + {LOG}]
    test rsi, rsi
    jz .Lmain
    mov [rbx + {ARGUMENT} + 8], rsi
    xor rsi, rbp
    mov [rbx + {ARGUMENT}], rsi
    mov qword ptr [rbx + {ARGUMENT} + 16], 4096
    mov qword ptr [rbx + {ARGUMENT} + 24], 0
    mov eax, {SYS_IOCTL}
    mov edi, [rbx + {UFFD}]
    mov esi, {UFFDIO_MOVE}
    lea rdx, [rbx + {ARGUMENT}]
    syscall
    test eax, eax
    jz .Lmain
    inc qword ptr [rbx + {REFUSED}]
    jmp .Lmain

.Lraise:
    mov qword ptr [rbx + {EVENT}], 1
    mov qword ptr [rbx + {SCRATCH}], 1
    mov eax, {SYS_WRITE}
    mov edi, [rbx + {BELL}]
    lea rsi, [rbx + {SCRATCH}]
    mov edx, 8
    syscall
    jmp .Lmain

.Lawait_master:
    # Execute only calls for the event: a batch from before it may be based on an outdated address space.
    bt qword ptr [rbx + {COMMAND}], 32
    jc .Lrun
    mov eax, {SYS_POLL}
    lea rdi, [rbx + {POLL} + 8]
    mov esi, 2
    mov rdx, -1
    syscall
    # The program has exited, and possibly the emulator with it: there will be no answer.
    cmp word ptr [rbx + {POLL} + 16 + 6], 0
    jne .Lend
    xor eax, eax
    mov edi, [rbx + {WAKE}]
    lea rsi, [rbx + {SCRATCH}]
    mov edx, 8
    syscall
    jmp .Lmain

.Lrun:
    mov r15d, [rbx + {COMMAND}]
    shl r15, 6
    lea r15, [rbx + r15 + {CALLS}]
    # rsp is the cursor: there is no stack, and no signal is ever delivered here.
    lea rsp, [rbx + {CALLS}]
.Lcall:
    mov rax, [rsp]
    mov rdi, [rsp + 8]
    mov rsi, [rsp + 16]
    mov rdx, [rsp + 24]
    mov r10, [rsp + 32]
    mov r8, [rsp + 40]
    mov r9, [rsp + 48]
    syscall
    mov [rsp + 56], rax
    add rsp, 64
    cmp rsp, r15
    jb .Lcall
    mov qword ptr [rbx + {COMMAND}], 0
    mov qword ptr [rbx + {SCRATCH}], 1
    mov eax, {SYS_WRITE}
    mov edi, [rbx + {BELL}]
    lea rsi, [rbx + {SCRATCH}]
    mov edx, 8
    syscall
    jmp .Lmain
thermocline_helper_end:
    .popsection
