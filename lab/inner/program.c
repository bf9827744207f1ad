/*
 * The nested guest: a program without an operating system, because Linux takes minutes to boot when it is emulated
 * twice.
 *
 * When it reads a number on its serial port, it fills that many MiB of a memory module at 4 GiB with marks. From
 * then on it checks the marks continuously, one chunk at a time. QEMU boots it by Multiboot 0.6.96, in 32 bits; it
 * accesses memory above 4 GiB by pages of 4 MiB with 36-bit addresses (PSE-36).
 */

typedef unsigned int u32;
typedef unsigned char u8;

enum {
	PORT = 0x3f8,
	MIB = 1 << 20,
	/* Virtual address of the module. */
	FAR = 1 << 30,
	FAR_MIB_MAX = 512,
	/* Distance between two marks. */
	STEP = 64,
	/* Size of one check; small, so that reports are frequent. */
	CHUNK = 4 * MIB,
	/* Entry of the page directory: a present, writable page of 4 MiB. */
	PAGE = 0x83,
	PAGE_SHIFT = 22,
	/* Bit of the entry for bit 32 of the physical address. */
	ABOVE_4_GIB = 1 << 13,
};

static u32 directory[1024] __attribute__((aligned(4096)));
u8 stack[16384] __attribute__((aligned(16)));

__asm__(".text\n"
	".align 4\n"
	".long 0x1badb002, 0, -0x1badb002\n"
	".globl _start\n"
	"_start: movl $stack + 16384, %esp\n"
	"call run\n");

static void out(u32 port, u8 byte)
{
	__asm__ volatile("outb %0, %w1" : : "a"(byte), "d"(port));
}

static u8 in(u32 port)
{
	u8 byte;

	__asm__ volatile("inb %w1, %0" : "=a"(byte) : "d"(port));
	return byte;
}

static void say(const char *text)
{
	for (; *text; text++) {
		while (!(in(PORT + 5) & 0x20))
			;
		out(PORT, *text);
	}
}

static void say_figure(const char *name, u32 value)
{
	char digits[11];
	u32 at = sizeof(digits) - 1;

	digits[at] = 0;
	do {
		digits[--at] = '0' + value % 10;
		value /= 10;
	} while (value);
	say("{\"");
	say(name);
	say("\":");
	say(digits + at);
	say("}\n");
}

/* Maps the first GiB identically, and the module after it. */
static void map(void)
{
	u32 page;

	for (page = 0; page < FAR >> PAGE_SHIFT; page++)
		directory[page] = page << PAGE_SHIFT | PAGE;
	for (page = 0; page < FAR_MIB_MAX / 4; page++)
		directory[(FAR >> PAGE_SHIFT) + page] = page << PAGE_SHIFT | ABOVE_4_GIB | PAGE;
	__asm__ volatile("movl %%cr4, %%eax; orl $0x10, %%eax; movl %%eax, %%cr4\n"
			 "movl %0, %%cr3\n"
			 "movl %%cr0, %%eax; orl $0x80000000, %%eax; movl %%eax, %%cr0"
			 : : "r"(directory) : "eax", "memory");
}

static volatile u32 *place(u32 at)
{
	return (volatile u32 *)(FAR + at);
}

static u32 mark(u32 at)
{
	return at * 2654435761u ^ 0x5bd1e995;
}

void run(void)
{
	u32 at, end, damaged, next = 0, held = 0, mib = 0;

	map();
	/* Eight data bits, no interrupts. */
	out(PORT + 1, 0);
	out(PORT + 3, 3);
	say("inner: up\n");
	for (;;) {
		while (in(PORT + 5) & 1) {
			u8 byte = in(PORT);

			if (byte >= '0' && byte <= '9') {
				mib = mib * 10 + (byte - '0');
			} else if (mib && mib <= FAR_MIB_MAX - held / MIB) {
				for (at = held; at < held + mib * MIB; at += STEP)
					*place(at) = mark(at);
				held += mib * MIB;
				say_figure("held_bytes", mib * MIB);
				mib = 0;
			}
		}
		if (!held)
			continue;
		end = held - next < CHUNK ? held : next + CHUNK;
		for (at = next, damaged = 0; at < end; at += STEP)
			damaged += *place(at) == mark(at) ? 0 : STEP;
		say_figure("damaged_bytes", damaged);
		next = end == held ? 0 : end;
	}
}
