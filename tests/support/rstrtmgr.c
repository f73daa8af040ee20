/* The Restart Manager of Windows, for wine, whose own finds no programs: one program has the files
   that exist open. restartmanager.h, which zig has, declares the functions and the structure. */
#include <windows.h>
#include <restartmanager.h>

static int is_there;

DWORD WINAPI RmStartSession(DWORD *session, DWORD flags, WCHAR key[])
{
    *session = 7;
    key[CCH_RM_SESSION_KEY] = 0;
    return flags;
}

DWORD WINAPI RmRegisterResources(DWORD session, UINT count, LPCWSTR files[], UINT applications,
                                 RM_UNIQUE_PROCESS processes[], UINT services, LPCWSTR names[])
{
    for (UINT i = 0; i < count; i++)
        is_there |= GetFileAttributesW(files[i]) != INVALID_FILE_ATTRIBUTES;
    return session == 7 && !applications && !processes && !services && !names
               ? ERROR_SUCCESS : ERROR_INVALID_PARAMETER;
}

DWORD WINAPI RmGetList(DWORD session, UINT *needed, UINT *count, RM_PROCESS_INFO found[],
                       LPDWORD reasons)
{
    static const WCHAR *const names[] = {L"LM Studio", L"Pruefer"};
    *needed = is_there ? 2 : 0;
    *reasons = 0;
    if (session != 7 || *count < *needed)
        return ERROR_MORE_DATA;
    *count = *needed;
    for (UINT i = 0; i < *count; i++) {
        memset(&found[i], 0xFF, sizeof *found);
        found[i].Process.dwProcessId = 4242 + i;
        lstrcpyW(found[i].strAppName, names[i]);
    }
    return ERROR_SUCCESS;
}

DWORD WINAPI RmEndSession(DWORD session)
{
    return session == 7 ? ERROR_SUCCESS : ERROR_INVALID_HANDLE;
}
