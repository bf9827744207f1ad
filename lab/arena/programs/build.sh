# Runs in a guest: compiles a small program again and again, as a build server does: short-lived processes, sources and
# objects in the page cache, headers that are read each time, and old outputs that nothing reads.
mkdir -p /root/build
cd /root/build
n=0
while [ $n -lt 4 ]; do
  n=$((n + 1))
  {
    echo '#include <stdio.h>'
    echo '#include <stdlib.h>'
    echo '#include <string.h>'
    line=0
    while [ $line -lt 120 ]; do
      line=$((line + 1))
      echo "int f_${n}_$line(int a) { char text[64]; snprintf(text, sizeof text, \"%d\", a * $line); return atoi(text) + $n; }"
    done
  } >"$n.c"
done
echo 'int main(void) { return 0; }' >main.c
cat /usr/bin/perl /usr/lib/x86_64-linux-gnu/*.so* 2>/dev/null | head -c 12000000 >old-output
cat old-output >/dev/null
for n in 1 2 3 4; do gcc -O1 -c "$n.c" -o "$n.o"; done
echo ready
round=0
while :; do
  round=$((round + 1))
  for n in $((round % 4 + 1)) $(((round + 1) % 4 + 1)); do gcc -O1 -c "$n.c" -o "$n.o"; done
  gcc main.c [1-4].o -o "out.$((round % 8))"
  sleep 5
done
